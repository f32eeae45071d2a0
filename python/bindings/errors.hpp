// Exceptions of C++ become those of tutti.errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

namespace tutti::python {

namespace py = pybind11;

void bind_errors();

/** An exception of Python in one line or more: "ValueError: its text". */
std::string text_of(py::handle exception);
/** A str in UTF-8, whatever it holds. */
std::string text_of_str(py::handle str);

}  // namespace tutti::python
