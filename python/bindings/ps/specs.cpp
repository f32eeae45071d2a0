// What tables and dense parameters are, and how these are cut into blocks.
#include <span>
#include <string>
#include <vector>

#include "array.hpp"
#include "ps/bindings.hpp"
#include "ps/record.hpp"
#include "shape.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/dense.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::python {
namespace {

void bind_table(py::module_& module) {
  py::enum_<ps::Split>(module, "Split", "Which server has a row.")
      .value("hash", ps::Split::hash, "By a hash of the id.")
      .value("mod", ps::Split::mod, "The id modulo the number of servers.");
  bind_record(module, "TableSpec", "What a table is; alike on all workers and servers.",
              Field{"name", &ps::TableSpec::name, "Its name."},
              Field{"dim", &ps::TableSpec::dim, "Elements of a row."},
              Field{"rule", &ps::TableSpec::rule, "How pushes change rows."},
              Field{"initial", &ps::TableSpec::initial, "What a row is before its first push."},
              Field{"entry", &ps::TableSpec::entry, "Which ids get a row."},
              Field{"eviction", &ps::TableSpec::eviction, "Which rows go again."},
              Field{"dict_size", &ps::TableSpec::dict_size, "The limit of ids; 0: none."},
              Field{"padding_idx", &ps::TableSpec::padding_idx, "An id that is no row."},
              Field{"split", &ps::TableSpec::split, "Which server has a row."},
              Field{"consistent_rows", &ps::TableSpec::consistent_rows,
                    "Whether a lookup that meets a row in the middle of an update tries again, for "
                    "a while."});
}

/** `initial` is an array of float32, or None where only worker 0's values count. */
ps::DenseParameter dense_parameter(std::string name, const py::object& shape, ps::Rule rule,
                                   const py::object& initial, bool shared) {
  ps::DenseParameter parameter{std::move(name), numbers_of(shape, "shape"), rule, {}, shared};
  if (initial.is_none()) return parameter;
  const Array array(initial, "parameter " + parameter.name, Array::Access::read);
  const View& view = array.view();
  if (view.dtype != DType::f32 || view.device.kind != DeviceKind::cpu) {
    throw InvalidArgument("parameter " + parameter.name + " is " +
                          std::string(name_of(view.dtype)) + " on " +
                          (view.device.kind == DeviceKind::cpu ? "the CPU" : "a GPU") +
                          ", but must be float32 on the CPU");
  }
  const auto* const values = static_cast<const float*>(view.data);
  parameter.initial.assign(values, values + view.count);
  return parameter;
}

std::vector<ps::Block> slice(const std::vector<ps::DenseParameter>& parameters, int servers,
                             bool slice_var_up, std::int64_t min_block_size) {
  ps::Slicing slicing;
  slicing.slice = slice_var_up;
  slicing.min_block_size = min_block_size;
  return ps::slice(parameters, servers, slicing);
}

/** The server that ps::hash_name() gives a block of that name. */
int server_by_name(const std::string& name, int servers) {
  if (servers < 1) {
    throw InvalidArgument("servers is " + std::to_string(servers) + ", but must be at least 1");
  }
  const ps::Block block{.name = name};
  return ps::hash_name()(std::span(&block, 1), servers).front();
}

}  // namespace

void bind_ps_specs(py::module_& module) {
  bind_table(module);
  py::class_<ps::DenseParameter>(module, "DenseParameter", "A dense parameter.")
      .def(py::init(&dense_parameter), py::arg("name"), py::arg("shape"), py::arg("rule"),
           py::arg("initial") = py::none(), py::arg("shared") = false)
      .def_readonly("name", &ps::DenseParameter::name, "Its name.");
  bind_record(module, "Block", "Whole rows of a dense parameter, which one server has.",
              Field{"parameter", &ps::Block::parameter, "The parameter's number."},
              Field{"number", &ps::Block::number, "The block's number in it."},
              Field{"offset", &ps::Block::offset, "Where it begins, in elements."},
              Field{"count", &ps::Block::count, "How many elements it has."},
              Field{"name", &ps::Block::name, "The parameter's name and the block's number."});
  module.def("slice", &slice, py::arg("parameters"), py::arg("servers"), py::arg("slice_var_up"),
             py::arg("min_block_size"), "The blocks of dense parameters.");
  module.def("server_by_name", &server_by_name, py::arg("name"), py::arg("servers"),
             "The server of a block of that name, by a hash that is the same everywhere.");
}

}  // namespace tutti::python
