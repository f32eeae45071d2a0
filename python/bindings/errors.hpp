// Exceptions of C++ become those of tutti.errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <string_view>

namespace tutti::python {

namespace py = pybind11;

void bind_errors();

/** An exception of Python in one line or more: "ValueError: its text". */
std::string text_of(py::handle exception);
/** The same of the exception that ends something, for the other ranks; nothing for None, or if it
 * is no failure, as sys.exit(0). Of sys.exit(1) in an exception's handler, that exception. */
std::optional<std::string> reason_of(const py::object& exception);

/** An exception of Python on its way through C++, which learns of it no more than type and text. */
class PythonError final : public py::error_already_set {
 public:
  explicit PythonError(const py::error_already_set& error)
      : py::error_already_set(error), text_(text_of(error.value())) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/** A str of `text`, with U+FFFD for what is no UTF-8. */
py::object str_of(std::string_view text);
/** A str in UTF-8, whatever it holds. */
std::string text_of_str(py::handle str);

}  // namespace tutti::python
