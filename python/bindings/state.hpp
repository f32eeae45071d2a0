// An optimiser's state between C++ and Python.
#pragma once

#include <pybind11/pybind11.h>

#include "tutti/optimizer.hpp"

namespace tutti::python {

namespace py = pybind11;

/** {'arrays': {name: array}, 'numbers': {name: float}}. */
py::dict state_to_python(OptimizerState state);

/** The same back. Throws InvalidArgument, which names the key, if `state` is anything else. */
OptimizerState state_from_python(py::handle state);

}  // namespace tutti::python
