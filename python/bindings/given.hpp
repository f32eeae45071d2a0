// Arguments that are refused by name and value, as tutti._checks refuses those of the package.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "errors.hpp"
#include "tutti/error.hpp"

namespace tutti::python {

namespace py = pybind11;

namespace given {

/** A function of tutti._checks: an argument as it is to be, or TypeError or InvalidArgument. */
inline py::object checked(const char* check, const char* name, py::handle value) {
  return py::module_::import("tutti._checks").attr(check)(name, value);
}

/** As Python writes it, or what that begins with. */
inline std::string shown(py::handle value) {
  constexpr std::size_t kMost = 200;
  const std::string text = text_of_str(py::repr(value));
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

[[noreturn]] inline void refuse(const char* name, py::handle value, const std::string& wanted) {
  throw py::type_error(std::string(name) + " is " + shown(value) + ", but must be " + wanted);
}

[[noreturn]] inline void refuse_surrogate(const char* name, py::handle value) {
  throw InvalidArgument(std::string(name) + " is " + shown(value) +
                        ", but must be valid Unicode, without half of a surrogate pair");
}

/** A str as UTF-8. */
inline std::string text(const char* name, const py::object& value) {
  if (!py::isinstance<py::str>(value)) refuse(name, value, "of str");
  Py_ssize_t length = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (utf8 != nullptr) return {utf8, static_cast<std::size_t>(length)};
  if (PyErr_ExceptionMatches(PyExc_UnicodeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  refuse_surrogate(name, value);
}

/** A path, as the system has it. */
inline std::filesystem::path path(const char* name, const py::object& value) try {
  auto bytes = py::module_::import("os").attr("fsencode")(value).cast<std::string>();
  if (bytes.find('\0') != std::string::npos) refuse(name, value, "without a null character");
  return bytes;
} catch (py::error_already_set& error) {
  if (error.matches(PyExc_TypeError)) refuse(name, value, "of str or PathLike");
  if (error.matches(PyExc_UnicodeError)) refuse_surrogate(name, value);
  throw;
}

/** The list that one text is, or several with commas between. */
inline std::string joined_texts(const char* name, const py::object& value) {
  if (py::isinstance<py::str>(value)) return text(name, value);
  const auto joined = py::reinterpret_steal<py::str>(
      PyUnicode_Join(py::str(",").ptr(), value.ptr()));  // null: it is no iterable of texts
  if (joined) return text(name, joined);
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  refuse(name, value, "a text, or an iterable of texts");
}

template <class T>
struct Maybe : std::false_type {};
template <class T>
struct Maybe<std::optional<T>> : std::true_type {
  using Value = T;
};

/** Several numbers: a vector has any length. */
template <class T>
struct Numbers : std::false_type {};
template <std::integral T>
struct Numbers<std::vector<T>> : std::true_type {};
template <std::floating_point T>
struct Numbers<std::pair<T, T>> : std::true_type {};

/** The class of Python that a T is, or those that it may be: "Sgd, Momentum or Adam". */
template <class T>
struct Classes {
  static std::string text() {
    const py::handle type = py::detail::get_type_handle(typeid(T), true);
    return type.attr("__name__").template cast<std::string>();
  }
};
template <class First, class... Others>
struct Classes<std::variant<First, Others...>> {
  static std::string text() {
    std::string list = Classes<First>::text();
    std::size_t left = sizeof...(Others);
    ((list += (--left == 0 ? " or " : ", ") + Classes<Others>::text()), ...);
    return list;
  }
};

template <std::integral T>
T whole_number(const char* name, const py::object& value) {
  const py::object number =
      PyLong_CheckExact(value.ptr()) != 0 ? value : checked("integer", name, value);
  int overflow = 0;
  const std::int64_t found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0 && std::in_range<T>(found)) return static_cast<T>(found);
  throw InvalidArgument(std::string(name) + " is " + shown(value) +
                        ", but must be a whole number from " +
                        std::to_string(std::numeric_limits<T>::min()) + " to " +
                        std::to_string(std::numeric_limits<T>::max()));
}

template <std::floating_point T>
T number(const char* name, const py::object& value) {
  const double found = PyFloat_CheckExact(value.ptr()) != 0
                           ? PyFloat_AS_DOUBLE(value.ptr())
                           : checked("number", name, value).cast<double>();
  if (std::isfinite(found) && std::abs(found) > std::numeric_limits<T>::max()) {
    throw InvalidArgument(std::string(name) + " is " + shown(value) +
                          ", but must be a number that float32 holds");
  }
  return static_cast<T>(found);
}

/** The numbers of a sequence, whose errors name the one that is wrong: "ranks[1] is". */
template <class T>
T numbers(const char* name, const py::object& value, const char* wanted) {
  const bool is_text = py::isinstance<py::str>(value) || py::isinstance<py::bytes>(value);
  if (is_text || PySequence_Check(value.ptr()) == 0) refuse(name, value, wanted);
  const auto all = py::reinterpret_borrow<py::sequence>(value);
  const std::size_t count = all.size();
  const auto name_of = [&](std::size_t at) {
    return std::string(name) + "[" + std::to_string(at) + "]";
  };
  if constexpr (requires { typename T::first_type; }) {
    if (count != 2) refuse(name, value, wanted);
    return {number<typename T::first_type>(name_of(0).c_str(), all[0]),
            number<typename T::second_type>(name_of(1).c_str(), all[1])};
  } else {
    T found;
    for (std::size_t at = 0; at < count; ++at) {
      found.push_back(whole_number<typename T::value_type>(name_of(at).c_str(), all[at]));
    }
    return found;
  }
}

/** What an argument is as a T of C++. `wanted` says what it must be, where T does not. */
template <class T>
T value_of(const char* name, const py::object& value, const char* wanted) {
  if constexpr (Maybe<T>::value) {
    if (value.is_none()) return std::nullopt;
    return value_of<typename Maybe<T>::Value>(name, value, wanted);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
    return checked("flag", name, value).cast<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    return whole_number<T>(name, value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return number<T>(name, value);
  } else if constexpr (Numbers<T>::value) {
    return numbers<T>(name, value, wanted);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return text(name, value);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return path(name, value);
  } else {
    py::detail::make_caster<T> caster;
    if (value.is_none() || !caster.load(value, true)) {  // for a pointer None would be null
      refuse(name, value, *wanted != '\0' ? wanted : "of " + Classes<T>::text());
    }
    return py::detail::cast_op<T>(std::move(caster));
  }
}

}  // namespace given

/**
 * An argument that help texts say is a T. pybind11 alone would answer a wrong one by the types of
 * all arguments, and the values of all that were passed.
 */
template <class T>
class Given : public py::object {
 public:
  Given() = default;
  Given(py::handle value, borrowed_t borrowed) : py::object(value, borrowed) {}
  Given(py::handle value, stolen_t stolen) : py::object(value, stolen) {}
  static bool check_(py::handle /*value*/) { return true; }

  /** The value. Throws TypeError or InvalidArgument that begin "name is". `wanted`, as "a list of
   * whole numbers", where T is neither number, bool, str nor a class. */
  T as(const char* name, const char* wanted = "") const {
    return given::value_of<T>(name, *this, wanted);
  }
};

/** An argument that help texts call an Array: whatever has memory, as array.hpp takes it. */
class AnyArray : public py::object {
 public:
  AnyArray() = default;
  AnyArray(py::handle value, borrowed_t borrowed) : py::object(value, borrowed) {}
  AnyArray(py::handle value, stolen_t stolen) : py::object(value, stolen) {}
  static bool check_(py::handle /*value*/) { return true; }
};

}  // namespace tutti::python

template <>
struct pybind11::detail::handle_type_name<tutti::python::AnyArray> {
  static constexpr auto name = const_name("Array");
};
template <>
struct pybind11::detail::handle_type_name<tutti::python::Given<std::filesystem::path>> {
  static constexpr auto name = const_name("Union[str, os.PathLike]");
};
template <class T>
struct pybind11::detail::handle_type_name<tutti::python::Given<T>> {
  static constexpr auto name = make_caster<T>::name;
};
