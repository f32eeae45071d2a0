// tutti._core.ps: what tutti.ps stands on.
#pragma once

#include <pybind11/pybind11.h>

namespace tutti::python {

namespace py = pybind11;

/** Rules, initial values, modes, and what else says how a table or a fleet is to be. */
void bind_ps_records(py::module_& module);
/** What tables and dense parameters are. */
void bind_ps_specs(py::module_& module);
/** Who is worker and who is server, and what each does. */
void bind_ps_fleet(py::module_& module);
/** What checkpoints hold. */
void bind_ps_checkpoint(py::module_& module);

}  // namespace tutti::python
