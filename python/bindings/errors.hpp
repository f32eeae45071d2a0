// Exceptions of C++ become those of tutti.errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace tutti::python {

namespace py = pybind11;

void bind_errors();

}  // namespace tutti::python
