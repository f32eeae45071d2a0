// What checkpoints hold.
#include "tutti/ps/checkpoint.hpp"

#include <string>
#include <vector>

#include "ps/bindings.hpp"

namespace tutti::python {
namespace {

py::dict describe(const std::vector<ps::CheckpointTable>& tables) {
  py::dict result;
  for (const ps::CheckpointTable& table : tables) {
    py::dict of;
    of["rule"] = table.rule;
    of["dim"] = table.dim;
    of["rows"] = table.rows;
    of["bytes"] = table.bytes;
    result[py::str(table.name)] = of;
  }
  return result;
}

py::dict inspect(const std::string& folder) {
  ps::CheckpointContents contents;
  {
    const py::gil_scoped_release released;
    contents = ps::inspect_checkpoint(folder);
  }
  py::dict result;
  result["servers"] = contents.servers;
  result["round"] = contents.round;
  result["tables"] = describe(contents.tables);
  result["dense"] = describe(contents.dense);
  return result;
}

}  // namespace

void bind_ps_checkpoint(py::module_& module) {
  module.def("inspect", &inspect, py::arg("folder"), "Reads all of a checkpoint; what it holds.");
}

}  // namespace tutti::python
