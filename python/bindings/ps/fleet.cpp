// A process' part of a parameter server as Python holds it.
#include "ps/fleet.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "errors.hpp"
#include "log.hpp"
#include "ps/bindings.hpp"
#include "ps/row_memory.hpp"
#include "shape.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

/** The elements of an array of the CPU. Throws InvalidArgument for other types and devices. */
template <class T>
std::span<T> elements_of(const Array& array, const char* name) {
  const View& view = array.view();
  constexpr DType kWanted = DTypeOf<std::remove_const_t<T>>::value;
  if (view.dtype != kWanted || view.device.kind != DeviceKind::cpu) {
    throw InvalidArgument(std::string(name) + " is " + std::string(name_of(view.dtype)) +
                          (view.device.kind == DeviceKind::cpu ? "" : " on a GPU") +
                          ", but must be " + std::string(name_of(kWanted)) + " on the CPU");
  }
  return {static_cast<T*>(view.data), static_cast<std::size_t>(view.count)};
}

/** An array that is read while a call works on it, or nothing. */
template <class T>
class Input {
 public:
  Input(py::handle object, const char* name) {
    if (object.is_none()) return;
    array_.emplace(object, name, Array::Access::read);
    elements_ = elements_of<const T>(*array_, name);
  }
  std::span<const T> elements() const { return elements_; }

 private:
  std::optional<Array> array_;
  std::span<const T> elements_;
};

using Ids = Input<std::int64_t>;
using Floats = Input<float>;

void lookup(const PyFleet& self, int table, py::handle ids, py::handle rows) {
  const Ids wanted(ids, "ids");
  const Array out(rows, "out", Array::Access::write);
  const std::span<float> elements = elements_of<float>(out, "out");
  self.on_worker([&](ps::Worker& worker) { worker.lookup(table, wanted.elements(), elements); });
}

/** In new memory, for a library that owns what it takes: PyTorch makes a tensor of that sooner than
 * of an array of NumPy's. */
py::object lookup_dlpack(const PyFleet& self, int table, py::handle ids, std::int64_t dim) {
  const Array array(ids, "ids", Array::Access::read);
  const auto wanted = elements_of<const std::int64_t>(array, "ids");
  Shape shape = array.shape();
  shape.push_back(dim);
  RowMemory::Lent rows = self.row_memory().lend(std::move(shape));
  self.on_worker([&](ps::Worker& worker) { worker.lookup(table, wanted, rows->elements()); });
  return to_dlpack(std::move(rows));
}

void prefetch(const PyFleet& self, int table, py::handle ids) {
  const Ids wanted(ids, "ids");
  self.on_worker([&](ps::Worker& worker) { worker.prefetch(table, wanted.elements()); });
}

void push(const PyFleet& self, int table, py::handle ids, py::handle gradients, py::handle shows,
          py::handle clicks) {
  const Ids of(ids, "ids");
  const Floats rows(gradients, "gradients");
  const Floats shown(shows, "shows");
  const Floats clicked(clicks, "clicks");
  self.on_worker([&](ps::Worker& worker) {
    worker.push(table, of.elements(), rows.elements(), shown.elements(), clicked.elements());
  });
}

void push_dense(const PyFleet& self, int parameter, py::handle gradient) {
  const Floats elements(gradient, "gradient");
  self.on_worker([&](ps::Worker& worker) { worker.push_dense(parameter, elements.elements()); });
}

void pull_dense(const PyFleet& self, int parameter, py::handle value) {
  const Array out(value, "value", Array::Access::write);
  const std::span<float> elements = elements_of<float>(out, "value");
  self.on_worker([&](ps::Worker& worker) { worker.pull_dense(parameter, elements); });
}

py::dict worker_stats(const PyFleet& self) {
  const ps::WorkerStats stats = self.on_worker([](ps::Worker& worker) { return worker.stats(); });
  py::dict result;
  result["steps"] = stats.steps;
  result["pushes"] = stats.pushes;
  result["merged"] = stats.merged;
  result["rows_looked_up"] = stats.rows_looked_up;
  result["rows_pushed"] = stats.rows_pushed;
  result["torn_rows"] = stats.torn_rows;
  result["bytes_sent"] = stats.bytes_sent;
  result["bytes_received"] = stats.bytes_received;
  return result;
}

py::object server_stats(const PyFleet& self) {
  const std::optional<ps::ServerStats> stats = self.server_stats();
  if (!stats) return py::none();
  py::dict tables;
  for (const ps::TableStats& table : stats->tables) {
    py::dict of;
    of["rows"] = table.rows;
    of["bytes"] = table.bytes;
    of["created"] = table.created;
    of["refused"] = table.refused;
    of["evicted"] = table.evicted;
    tables[py::str(table.name)] = of;
  }
  py::dict result;
  result["tables"] = tables;
  result["pushes"] = stats->pushes;
  result["rows_updated"] = stats->rows_updated;
  result["lost_workers"] = stats->lost_workers;
  return result;
}

std::optional<std::chrono::milliseconds> timeout_of(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  constexpr double kMost = 1e9;
  if (!(*seconds > 0 && *seconds <= kMost)) {
    throw InvalidArgument("timeout is " + std::to_string(*seconds) +
                          " seconds, but must be above 0 and at most 1e9");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1e3)));
}

std::shared_ptr<PyFleet> make_fleet(const PyPlacement& placement, std::vector<ps::TableSpec> tables,
                                    std::vector<ps::DenseParameter> dense, bool slice_var_up,
                                    std::int64_t min_block_size, std::vector<int> servers,
                                    ps::Mode mode, std::uint64_t seed, ps::WireFormat wire,
                                    std::optional<double> timeout, std::string load,
                                    std::string checkpoint, std::int64_t every, bool save_at_end) {
  ps::FleetOptions options;
  options.tables = std::move(tables);
  options.dense = std::move(dense);
  options.slicing = {slice_var_up, min_block_size,
                     [servers = std::move(servers)](std::span<const ps::Block> /*blocks*/,
                                                    int /*servers*/) { return servers; }};
  options.mode = mode;
  options.seed = seed;
  options.wire = wire;
  options.timeout = timeout_of(timeout);
  options.load = std::move(load);
  options.checkpoint = std::move(checkpoint);
  options.every = std::chrono::seconds(every);
  options.save_at_end = save_at_end;
  ask_logger();
  auto self = std::make_shared<PyFleet>(placement, options);
  close_at_exit(self);
  return self;
}

/** A placement among the ranks of `world`, which all of them make. */
template <class Make>
PyPlacement placement_in(const std::shared_ptr<PyCommunicator>& world, const Make& make) {
  auto placement =
      world->call([&](Communicator& ranks) { return own<ps::Placement>(make(ranks)); });
  return {std::move(placement), world->shared()};
}

PyPlacement environment() {
  ask_logger();
  const auto placement =
      blocking([] { return own<ps::Placement>(ps::Placement::environment()); }, [] {});
  return {placement, std::shared_ptr<Communicator>(placement, placement->world())};
}

std::optional<std::shared_ptr<PyCommunicator>> world_of(const PyPlacement& self) {
  if (!self.world) return std::nullopt;
  auto world = std::make_shared<PyCommunicator>(self.world);
  close_at_exit(world);
  return world;
}

template <class Get>
auto get(Get get) {
  return [get](const PyPlacement& self) { return ((*self.placement).*get)(); };
}

void bind_placement(py::module_& module) {
  using World = std::shared_ptr<PyCommunicator>;
  using ps::Placement;
  py::class_<PyPlacement>(module, "Placement",
                          "What this process is among workers and servers, and where they meet.")
      .def_static(
          "last_ranks",
          [](const World& world, int servers) {
            return placement_in(
                world, [&](Communicator& ranks) { return Placement::last_ranks(ranks, servers); });
          },
          py::arg("world"), py::arg("servers"), "The last ranks are servers.")
      .def_static(
          "one_per_host",
          [](const World& world) { return placement_in(world, &Placement::one_per_host); },
          py::arg("world"), "The last rank of each host is a server.")
      .def_static(
          "threads", [](const World& world) { return placement_in(world, &Placement::threads); },
          py::arg("world"), "All ranks are workers, each with a server in a thread.")
      .def_static("environment", &environment, "What the environment says.")
      .def_static(
          "server",
          [](const std::string& endpoints, int index, int workers) {
            return PyPlacement{own<Placement>(Placement::server(endpoints, index, workers))};
          },
          py::arg("endpoints"), py::arg("index"), py::arg("workers"),
          "A server of those that listen at these endpoints.")
      .def_static(
          "worker",
          [](const std::string& endpoints, int index, int workers) {
            return PyPlacement{own<Placement>(Placement::worker(endpoints, index, workers))};
          },
          py::arg("endpoints"), py::arg("index"), py::arg("workers"),
          "A worker of servers that listen at these endpoints.")
      .def("world", &world_of, "The communicator of all workers and servers, if they have one.")
      .def_property_readonly("is_worker", get(&Placement::is_worker), "Whether it is a worker.")
      .def_property_readonly("is_server", get(&Placement::is_server), "Whether it is a server.")
      .def_property_readonly("worker_index", get(&Placement::worker_index),
                             "Which worker it is; -1 of one that is none.")
      .def_property_readonly("server_index", get(&Placement::server_index),
                             "Which server it is; -1 of one that is none.")
      .def_property_readonly("workers", get(&Placement::workers), "How many workers there are.")
      .def_property_readonly("servers", get(&Placement::servers), "How many servers there are.")
      .def_property_readonly("server_endpoints", get(&Placement::server_endpoints),
                             "'host:port' of each server, as far as they have any.");
}

}  // namespace

PyFleet::PyFleet(const PyPlacement& placement, const ps::FleetOptions& options)
    : placement_(placement),
      fleet_(blocking([&] { return own<ps::Fleet>(*placement.placement, options); }, [] {})) {}

PyFleet::~PyFleet() { close(std::nullopt); }

std::shared_ptr<ps::Fleet> PyFleet::let_go() {
  std::shared_ptr<ps::Fleet> fleet = std::exchange(fleet_, nullptr);
  // A call on another thread may hold it, too: then it goes when that call ends.
  return is_inherited() || fleet.use_count() > 1 ? nullptr : fleet;
}

void PyFleet::tell(const std::optional<std::string>& reason) {
  if (!reason || !fleet_ || is_inherited() || !fleet_->is_worker()) return;
  fleet_->worker().set_reason(*reason);
}

void PyFleet::stop() {
  on_worker([this](ps::Worker& worker) {
    const auto ask = [&] {
      if (worker.has_stopped()) has_stopped_ = true;  // not while another thread is in it
    };
    try {
      worker.stop();
    } catch (...) {
      ask();
      throw;
    }
    ask();
  });
}

void PyFleet::leave(const std::optional<std::string>& reason) {
  tell(reason);
  if (const auto fleet = let_go()) blocking([&] { fleet->close(); }, [] {});
}

std::shared_ptr<ps::Fleet> PyFleet::shared() const {
  if (!fleet_) throw CommunicationError("the fleet is closed");
  return fleet_;
}

void PyFleet::close(const std::optional<std::string>& reason) {
  tell(reason);
  if (const auto fleet = let_go()) blocking_at_end([&] { fleet->close(); }, [] {});
}

void bind_ps_fleet(py::module_& module) {
  bind_placement(module);
  py::class_<ps::DenseView>(module, "DenseView", py::buffer_protocol(),
                            "A dense parameter in its servers' memory, to be read alone.")
      .def_buffer([](ps::DenseView& view) {
        const std::span<const float> values = view.values();
        return py::buffer_info(values.data(), std::ssize(values));
      });
  py::class_<ps::DenseGradient>(module, "DenseGradient", py::buffer_protocol(),
                                "Memory for the gradient of a dense parameter.")
      .def_buffer([](ps::DenseGradient& gradient) {
        const std::span<float> elements = gradient.elements();
        return py::buffer_info(elements.data(), std::ssize(elements));
      });
  py::enum_<ps::WireFormat>(module, "WireFormat", "How rows and gradients travel between hosts.")
      .value("float32", ps::WireFormat::f32, "As they are.")
      .value("float16", ps::WireFormat::f16, "In half the bytes.")
      .value("bfloat16", ps::WireFormat::bf16, "In half the bytes, with float32's range.");
  py::class_<PyFleet, std::shared_ptr<PyFleet>>(module, "Fleet", "What tutti.ps.Fleet stands on.")
      .def(py::init(&make_fleet), py::arg("placement"), py::kw_only(), py::arg("tables"),
           py::arg("dense"), py::arg("slice_var_up"), py::arg("min_block_size"),
           py::arg("servers_of_blocks"), py::arg("mode"), py::arg("seed"), py::arg("wire"),
           py::arg("timeout"), py::arg("load"), py::arg("checkpoint"), py::arg("every"),
           py::arg("save_at_end"))
      .def(
          "table",
          [](const PyFleet& self, const std::string& name) {
            return self.on_worker([&](ps::Worker& worker) { return worker.table(name); });
          },
          py::arg("name"), "The number of a table.")
      .def(
          "parameter",
          [](const PyFleet& self, const std::string& name) {
            return self.on_worker([&](ps::Worker& worker) { return worker.parameter(name); });
          },
          py::arg("name"), "The number of a dense parameter.")
      .def("lookup", &lookup, py::arg("table"), py::arg("ids"), py::arg("rows"),
           "Writes the rows of ids to rows. Blocks.")
      .def("lookup_dlpack", &lookup_dlpack, py::arg("table"), py::arg("ids"), py::arg("dim"),
           "The rows of ids, of dim elements each, as a capsule of DLPack. Blocks.")
      .def("prefetch", &prefetch, py::arg("table"), py::arg("ids"),
           "Begins to fetch what a lookup will ask for.")
      .def("push", &push, py::arg("table"), py::arg("ids"), py::arg("gradients"),
           py::arg("shows") = py::none(), py::arg("clicks") = py::none(),
           "Adds gradients of rows to the batch.")
      .def("push_dense", &push_dense, py::arg("parameter"), py::arg("gradient"),
           "Adds the gradient of a dense parameter to the batch.")
      .def("pull_dense", &pull_dense, py::arg("parameter"), py::arg("value"),
           "Writes a dense parameter to value. Blocks.")
      .def(
          "view_dense",
          [](const PyFleet& self, int parameter) {
            return self.on_worker([&](ps::Worker& w) { return w.view_dense(parameter); });
          },
          py::arg("parameter"), "The memory in which servers have a dense parameter.")
      .def(
          "gradient_memory",
          [](const PyFleet& self, int parameter) {
            return self.on_worker([&](ps::Worker& w) { return w.gradient_memory(parameter); });
          },
          py::arg("parameter"), "Memory for a dense parameter's gradient.")
      .def(
          "step",
          [](const PyFleet& self) { self.on_worker([](ps::Worker& worker) { worker.step(); }); },
          "Ends a batch.")
      .def(
          "flush",
          [](const PyFleet& self) { self.on_worker([](ps::Worker& worker) { worker.flush(); }); },
          "Blocks until all pushes have been applied.")
      .def(
          "barrier",
          [](const PyFleet& self) { self.on_worker([](ps::Worker& worker) { worker.barrier(); }); },
          "Blocks until all workers that live have called it.")
      .def(
          "save",
          [](const PyFleet& self, const std::string& folder) {
            self.on_worker([&](ps::Worker& worker) { worker.save(folder); });
          },
          py::arg("folder"), "Has the servers write a checkpoint. Blocks.")
      .def("stop", &PyFleet::stop, "Pushes what is left, and leaves.")
      .def_property_readonly("has_stopped", &PyFleet::has_stopped,
                             "Whether stop() has ended, be it by an error.")
      .def("worker_stats", &worker_stats, "What the worker has done so far.")
      .def(
          "lost_workers",
          [](const PyFleet& self) {
            return self.on_worker([](ps::Worker& worker) { return worker.lost_workers(); });
          },
          "Workers that were lost so far.")
      .def(
          "serve",
          [](const PyFleet& self) { self.on_server([](ps::Server& server) { server.run(); }); },
          "Serves until all workers have stopped or are lost.")
      .def("server_stats", &server_stats,
           "What the server of this process has done so far; None if it has none.")
      .def(
          "close", [](PyFleet& self, const py::object& error) { self.leave(reason_of(error)); },
          py::arg("error") = py::none(),
          "Leaves: a worker that has not stopped is lost, because of `error` if there is one. "
          "Where a server is a thread of this process, blocks until no worker is left.");
}

}  // namespace tutti::python
