// What module.cpp binds, and nobody else refers to.
#pragma once

#include <pybind11/pybind11.h>

namespace tutti::python {

/** tutti.opt's optimisers. */
void bind_optimizers(pybind11::module_& module);
/** One bucket of gradients in a mode of DistOpt. */
void bind_bucket_average(pybind11::module_& module);
/** tutti.Store. */
void bind_store(pybind11::module_& module);
/** tutti.Timeline. */
void bind_timeline(pybind11::module_& module);

}  // namespace tutti::python
