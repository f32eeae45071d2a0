// tutti.Store.
#pragma once

#include <pybind11/pybind11.h>

namespace tutti::python {

void bind_store(pybind11::module_& module);

}  // namespace tutti::python
