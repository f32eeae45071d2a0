// What the owner of an array tells about it, in code and types of its own choice.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <utility>

#include "errors.hpp"
#include "tutti/error.hpp"

namespace tutti::python {

namespace py = pybind11;

/** What `call` gives, which runs code of the owner of array `name`; an exception that this raises
 * becomes InvalidArgument, which names both. */
template <class Call>
auto ask(const std::string& name, const std::string& what, Call&& call) try {
  return call();
} catch (py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C, for one
  throw InvalidArgument(name + " cannot be used: its " + what + " raised " +
                        text_of(error.value()));
}

/** An attribute of array `name`; null if it has none. */
py::object attribute_of(py::handle object, const char* attribute, const std::string& name);

/** Throws TypeError: "array: its __dlpack__() is a NoneType, but must be a capsule". */
[[noreturn]] void refuse_type(const std::string& what, py::handle value, const std::string& wanted);

/** A whole number. Throws TypeError if it is none, InvalidArgument if it is too large; the message
 * begins with `what`. */
std::int64_t integer_of(py::handle value, const std::string& what);
std::int32_t int32_of(py::handle value, const std::string& what);
/** The two items of a tuple or list, or TypeError. */
std::pair<py::object, py::object> pair_of(py::handle value, const std::string& what,
                                          const std::string& wanted);

/** The dictionary of an __array_interface__ or __cuda_array_interface__. An entry that is missing
 * or of another type than the protocol's is a TypeError that names it. */
class Interface {
 public:
  Interface(py::object dictionary, const char* protocol, const std::string& name);

  /** Null if there is none, or None. */
  py::object optional(const char* key) const;
  py::object entry(const char* key) const;
  /** How messages call an entry. */
  std::string name_of(const char* key) const { return what_ + "['" + key + "']"; }

  std::string typestr() const;
  /** Where the elements lie, and whether they are read-only. */
  std::pair<std::uintptr_t, bool> data() const;

 private:
  py::object dictionary_;
  std::string what_;
};

}  // namespace tutti::python
