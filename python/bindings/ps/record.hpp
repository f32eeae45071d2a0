// Structures of C++ that hold values alone, as classes of Python.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "given.hpp"

namespace tutti::python {

namespace py = pybind11;

/** A member of T: an argument of its constructor by that name, and an attribute. */
template <class T, class Member>
struct Field {
  const char* name;
  Member T::*member;
  const char* doc;
};
template <class T, class Member>
Field(const char*, Member T::*, const char*) -> Field<T, Member>;

/** As Python writes it; a float in its own precision, not in that of a double. */
template <class Value>
std::string repr_of(const Value& value) {
  if constexpr (std::is_same_v<Value, float>) {
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    return {text.data(), end};
  } else {
    return py::repr(py::cast(value)).template cast<std::string>();
  }
}

/**
 * Binds T with a constructor that takes all fields in their order or by name, T's own values being
 * the defaults, and with what Python expects of a value: it is shown as it is made, compared,
 * hashed and pickled, and does not change. It looks like a class of the module tutti.ps.
 */
template <class T, class... Members>
void bind_record(py::module_& module, const char* name, const char* doc,
                 const Field<T, Members>&... fields) {
  py::class_<T> type(module, name, doc);
  type.attr("__module__") = "tutti.ps";
  [[maybe_unused]] const T defaults{};
  type.def(
      py::init([fields...](const Given<Members>&... values) {
        T record{};
        ((record.*fields.member = values.as(fields.name)), ...);
        return record;
      }),
      py::arg_v(fields.name, defaults.*fields.member, repr_of(defaults.*fields.member).c_str())...);
  (type.def_readonly(fields.name, fields.member, fields.doc), ...);

  const auto values = [fields...]([[maybe_unused]] const T& record) {
    return py::make_tuple(record.*fields.member...);
  };
  type.def("__repr__", [name = std::string(name), fields...](const T& record) {
    std::string text;
    ((text +=
      std::string(text.empty() ? "" : ", ") + fields.name + "=" + repr_of(record.*fields.member)),
     ...);
    return name + "(" + text + ")";
  });
  type.def("__eq__", [values](const T& record, const py::object& other) {
    return py::isinstance<T>(other) && values(record).equal(values(other.cast<const T&>()));
  });
  type.def("__hash__", [values](const T& record) { return py::hash(values(record)); });
  type.def("__reduce__", [values](const py::object& record) {
    return py::make_tuple(py::type::of(record), values(record.cast<const T&>()));
  });
}

}  // namespace tutti::python
