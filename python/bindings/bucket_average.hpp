// One bucket of gradients in a mode of DistOpt, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

namespace tutti::python {

void bind_bucket_average(pybind11::module_& module);

}  // namespace tutti::python
