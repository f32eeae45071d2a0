// What the owner of an array tells about it, in code and types of its own choice.
#include "array_owner.hpp"

#include <utility>

namespace tutti::python {

py::object attribute_of(py::handle object, const char* attribute, const std::string& name) {
  return ask(name, attribute, [&] {
    auto found = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object.ptr(), attribute));
    if (found) return found;
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    return found;
  });
}

void refuse_type(const std::string& what, py::handle value, const std::string& wanted) {
  throw py::type_error(what + " is a " + Py_TYPE(value.ptr())->tp_name + ", but must be " + wanted);
}

std::int64_t integer_of(py::handle value, const std::string& what) {
  if (PyIndex_Check(value.ptr()) == 0) {
    throw py::type_error(what + ": a " + Py_TYPE(value.ptr())->tp_name + " is no whole number");
  }
  const auto number = ask(what, "__index__", [&] {
    auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    return index;
  });
  int overflow = 0;
  const auto result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) throw InvalidArgument(what + ": a number has more than 64 bits");
  return result;
}

std::int32_t int32_of(py::handle value, const std::string& what) {
  const std::int64_t number = integer_of(value, what);
  if (!std::in_range<std::int32_t>(number)) {
    throw InvalidArgument(what + ": " + std::to_string(number) + " has more than 32 bits");
  }
  return static_cast<std::int32_t>(number);
}

std::pair<py::object, py::object> pair_of(py::handle value, const std::string& what,
                                          const std::string& wanted) {
  if (!py::isinstance<py::tuple>(value) && !py::isinstance<py::list>(value)) {
    refuse_type(what, value, wanted);
  }
  const py::tuple items(py::reinterpret_borrow<py::object>(value));
  if (items.size() != 2) {
    throw py::type_error(what + " has " + std::to_string(items.size()) + " items, but must be " +
                         wanted);
  }
  return {items[0], items[1]};
}

Interface::Interface(py::object dictionary, const char* protocol, const std::string& name)
    : dictionary_(std::move(dictionary)), what_(name + ": its " + protocol) {
  if (!py::isinstance<py::dict>(dictionary_)) refuse_type(what_, dictionary_, "a dict");
}

py::object Interface::optional(const char* key) const {
  auto found = py::reinterpret_borrow<py::object>(PyDict_GetItemString(dictionary_.ptr(), key));
  return found && !found.is_none() ? found : py::object();
}

py::object Interface::entry(const char* key) const {
  py::object found = optional(key);
  if (!found) throw py::type_error(what_ + " has no '" + key + "'");
  return found;
}

std::string Interface::typestr() const {
  const py::object found = entry("typestr");
  if (!py::isinstance<py::str>(found)) refuse_type(name_of("typestr"), found, "a str");
  return text_of_str(found);
}

std::pair<std::uintptr_t, bool> Interface::data() const {
  const std::string what = name_of("data");
  const auto [pointer, fixed] = pair_of(entry("data"), what, "a tuple (address, read-only)");
  const std::int64_t address = integer_of(pointer, what);
  if (address < 0) {
    throw InvalidArgument(what + " has the address " + std::to_string(address));
  }
  const py::object read_only = fixed;
  return {static_cast<std::uintptr_t>(address),
          ask(what, "__bool__", [&] { return static_cast<bool>(py::bool_(read_only)); })};
}

}  // namespace tutti::python
