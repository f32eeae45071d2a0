// The extension module tutti._core: what Python sees of the C++ library. The package puts names and
// conveniences around it; here is only what marshals, lets go of the GIL, and calls.
#include <pybind11/pybind11.h>

#include "array.hpp"
#include "bindings.hpp"
#include "communicator.hpp"
#include "device_array.hpp"
#include "dist_opt.hpp"
#include "errors.hpp"
#include "given.hpp"
#include "lifetime.hpp"
#include "log.hpp"
#include "ps/bindings.hpp"
#include "stream.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::python {
namespace {

void bind_id(py::module_& module) {
  py::class_<UniqueId>(
      module, "NcclIdHolder",
      "The ticket that admits ranks to one communicator: made by one process, handed "
      "to the others by a fork, by pickle or as text(). Whoever has it may join: printing it "
      "shows nothing of it. Good for one meeting. "
      "Making one touches no device, so the process may fork afterwards.")
      .def(py::init(&UniqueId::create))
      .def_static(
          "parse", [](const Given<std::string>& text) { return UniqueId::parse(text.as("text")); },
          py::arg("text"), "The ticket that text() gave.")
      .def("text", &UniqueId::to_string, "The ticket itself, for parse().")
      .def("__repr__", [](const UniqueId&) { return "<tutti.NcclIdHolder>"; })
      .def("__eq__",
           [](const UniqueId& id, const py::object& other) {
             return py::isinstance<UniqueId>(other) && other.cast<const UniqueId&>() == id;
           })
      .def("__hash__", [](const UniqueId& id) { return py::hash(py::str(id.to_string())); })
      .def(py::pickle(
          [](const UniqueId& id) { return py::str(id.to_string()); },
          [](const py::str& text) { return UniqueId::parse(text.cast<std::string>()); }));
}

}  // namespace
}  // namespace tutti::python

PYBIND11_MODULE(_core, module) {
  namespace python = tutti::python;
  python::bind_errors();
  python::keep_log();
  python::bind_id(module);
  python::bind_array(module);
  python::bind_device_array(module);
  python::bind_stream(module);
  python::bind_communicator(module);
  python::bind_dist_opt(module);
  python::bind_bucket_average(module);
  python::bind_store(module);
  python::bind_timeline(module);
  auto ps = module.def_submodule("ps", "What tutti.ps stands on.");
  python::bind_ps_records(ps);
  python::bind_ps_specs(ps);
  python::bind_ps_fleet(ps);
  python::bind_ps_checkpoint(ps);
  module.attr("__version__") = TUTTI_VERSION;
  module.attr("backends") = TUTTI_BACKENDS;
  module.def("gpu_count", &tutti::gpu_count,
             "How many GPUs this process can use. Touches the driver, after which it should not "
             "fork.");
  module.def(
      "close_all",
      [](const pybind11::object& error) {
        python::close_all(python::reason_of(error));
        python::stop_keeping_log();
      },
      pybind11::arg("error"),
      "Closes what still communicates, at the interpreter's exit; `error`, or None, is its "
      "reason.");
}
