// tutti.opt's optimisers.
#pragma once

#include <pybind11/pybind11.h>

namespace tutti::python {

void bind_optimizers(pybind11::module_& module);

}  // namespace tutti::python
