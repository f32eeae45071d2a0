// The collectives of tutti.Communicator: arrays to views, and the call.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

using Access = Array::Access;
using Self = std::shared_ptr<PyCommunicator>;

using Op = Given<std::string>;
using Factor = Given<std::optional<double>>;
using Root = Given<int>;
using Counts = Given<std::optional<std::vector<std::int64_t>>>;

Reduce reduce_of(const Op& given, const Factor& scale) {
  const std::string op = given.as("op");
  const std::optional<double> factor = scale.as("factor");
  if (factor) {
    if (op != "sum") throw InvalidArgument("factor is given, but op is '" + op + "', not 'sum'");
    return Reduce::premul_sum(*factor);
  }
  for (int i = 0; i < kReduceKindCount; ++i) {
    const auto kind = static_cast<ReduceKind>(i);
    if (kind != ReduceKind::premul_sum && op == name_of(kind)) return kind;
  }
  throw InvalidArgument("op is '" + op +
                        "', but must be sum, average, min, max, product, band, bor, bxor, land, "
                        "lor or lxor");
}

/** The arrays of a collective that reads `array` and writes `out`, or `array` if that is None. */
std::vector<Array> in_and_out(py::handle array, py::handle out) {
  std::vector<Array> arrays;
  arrays.reserve(2);
  arrays.emplace_back(array, "array", out.is_none() ? Access::write : Access::read);
  if (!out.is_none()) arrays.emplace_back(out, "out", Access::write);
  return arrays;
}

/** A reduction whose result all ranks get: all_reduce, scan or exscan. */
template <Event (Communicator::*kReduction)(ConstView, View, Reduce, const Stream&)>
EventObject reduce_for_all(const Self& self, const AnyArray& array, const AnyArray& out,
                           const Op& op, const Factor& factor, const OnStream& stream) {
  std::vector<Array> arrays = in_and_out(array, out);
  const View from = arrays.front().view();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays),
             [&, reduce = reduce_of(op, factor)](Communicator& communicator, const Stream& on) {
               return (communicator.*kReduction)(from, to, reduce, on);
             });
}

EventObject reduce(const Self& self, const AnyArray& array, const Root& to_rank,
                   const AnyArray& out, const Op& op, const Factor& factor,
                   const OnStream& stream) {
  const int root = to_rank.as("root");
  const bool is_root = self->get().global_rank() == root;
  std::vector<Array> arrays;
  arrays.emplace_back(array, "array", is_root && out.is_none() ? Access::write : Access::read);
  if (is_root && !out.is_none()) arrays.emplace_back(out, "out", Access::write);
  const View from = arrays.front().view();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays),
             [&, reduce = reduce_of(op, factor)](Communicator& communicator, const Stream& on) {
               return communicator.reduce(from, to, root, reduce, on);
             });
}

EventObject broadcast(const Self& self, const AnyArray& array, const Root& from_rank,
                      const OnStream& stream) {
  const int root = from_rank.as("root");
  std::vector<Array> arrays = in_and_out(array, py::none());
  const View view = arrays.front().view();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return communicator.broadcast(view, root, on);
  });
}

/** How many elements each rank has, or nothing. */
std::optional<std::vector<std::int64_t>> counts_of(const Counts& given, const char* name) {
  return given.as(name, "a list of whole numbers");
}

EventObject gather(const Self& self, const AnyArray& array, const AnyArray& out,
                   const Root& to_rank, const Counts& of_ranks, const OnStream& stream) {
  const int root = to_rank.as("root");
  const auto counts = counts_of(of_ranks, "counts");
  const bool is_root = self->get().global_rank() == root;
  std::vector<Array> arrays;
  arrays.emplace_back(array, "array", Access::read);
  if (is_root) arrays.emplace_back(out, "out", Access::write);
  const View from = arrays.front().view();
  const View to = is_root ? arrays.back().view() : View();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return counts ? communicator.gather_v(from, to, *counts, root, on)
                  : communicator.gather(from, to, root, on);
  });
}

EventObject scatter(const Self& self, const AnyArray& array, const AnyArray& out,
                    const Root& from_rank, const Counts& of_ranks, const OnStream& stream) {
  const int root = from_rank.as("root");
  const auto counts = counts_of(of_ranks, "counts");
  const bool is_root = self->get().global_rank() == root;
  std::vector<Array> arrays;
  if (is_root) arrays.emplace_back(array, "array", Access::read);
  arrays.emplace_back(out, "out", Access::write);
  const View from = is_root ? arrays.front().view() : View();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return counts ? communicator.scatter_v(from, to, *counts, root, on)
                  : communicator.scatter(from, to, root, on);
  });
}

EventObject all_gather(const Self& self, const AnyArray& array, const AnyArray& out,
                       const Counts& of_ranks, const OnStream& stream) {
  const auto counts = counts_of(of_ranks, "counts");
  std::vector<Array> arrays = in_and_out(array, out);
  const View from = arrays.front().view();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return counts ? communicator.all_gather_v(from, to, *counts, on)
                  : communicator.all_gather(from, to, on);
  });
}

EventObject reduce_scatter(const Self& self, const AnyArray& array, const AnyArray& out,
                           const Op& op, const Factor& factor, const OnStream& stream,
                           const Counts& of_ranks) {
  const auto counts = counts_of(of_ranks, "counts");
  std::vector<Array> arrays = in_and_out(array, out);
  const View from = arrays.front().view();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays),
             [&, reduce = reduce_of(op, factor)](Communicator& communicator, const Stream& on) {
               return counts ? communicator.reduce_scatter_v(from, to, *counts, reduce, on)
                             : communicator.reduce_scatter(from, to, reduce, on);
             });
}

EventObject all_to_all(const Self& self, const AnyArray& array, const AnyArray& out,
                       const OnStream& stream, const Counts& to_ranks, const Counts& from_ranks) {
  const auto leaving = counts_of(to_ranks, "leaving");
  const auto arriving = counts_of(from_ranks, "arriving");
  if (leaving.has_value() != arriving.has_value()) {
    throw InvalidArgument(std::string(leaving ? "arriving" : "leaving") + " is None, but " +
                          (leaving ? "leaving" : "arriving") + " is not");
  }
  std::vector<Array> arrays = in_and_out(array, out);
  const View from = arrays.front().view();
  const View to = arrays.back().view();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return leaving ? communicator.all_to_all_v(from, *leaving, to, *arriving, on)
                   : communicator.all_to_all(from, to, on);
  });
}

EventObject barrier(const Self& self, const OnStream& stream) {
  return run(self, stream, {},
             [](Communicator& communicator, const Stream& on) { return communicator.barrier(on); });
}

}  // namespace

void bind_collectives(py::class_<PyCommunicator, Self>& communicator) {
  const auto out = py::arg("out") = py::none();
  const auto op = py::arg("op") = "sum";
  const auto factor = py::arg("factor") = py::none();
  const auto stream = py::arg("stream") = py::none();
  const auto root = py::arg("root") = 0;
  const auto counts = py::arg("counts") = py::none();
  communicator
      .def(
          "all_reduce", &reduce_for_all<&Communicator::all_reduce>, py::arg("array"), out, op,
          factor, stream,
          "out = the reduction of array over all ranks, element by element; in place without "
          "`out`. op: sum, average, min, max, product; bitwise band, bor, bxor and logical land, "
          "lor, lxor, not of floats; of bools min, max and these. With `factor`, the sum of factor "
          "* array.")
      .def("reduce", &reduce, py::arg("array"), py::arg("root") = 0, out, op, factor, stream,
           "As all_reduce, but only `root` gets the result.")
      .def("scan", &reduce_for_all<&Communicator::scan>, py::arg("array"), out, op, factor, stream,
           "out = the reduction of array over the ranks up to this one, in rank order; in place "
           "without `out`. op: as of all_reduce, but not average. Not on GPUs.")
      .def("exscan", &reduce_for_all<&Communicator::exscan>, py::arg("array"), out, op, factor,
           stream, "As scan, without this rank's own: out of rank 0 is left as it is.")
      .def("gather", &gather, py::arg("array"), out, root, counts, stream,
           "out of rank `root` = the array of rank 0, of rank 1, ...: world_size times as long. "
           "With `counts`, the same on all ranks, rank r contributes counts[r] elements.")
      .def("scatter", &scatter, py::arg("array"), py::arg("out"), root, counts, stream,
           "out = this rank's part of the array of rank `root`, which is world_size times as long; "
           "elsewhere array may be None. With `counts`, the same on all ranks, rank r gets "
           "counts[r] elements.")
      .def("broadcast", &broadcast, py::arg("array"), py::arg("root") = 0, stream,
           "array = that of rank `root`.")
      .def(
          "all_gather", &all_gather, py::arg("array"), py::arg("out"),
          py::arg("counts") = py::none(), stream,
          "out = the array of rank 0, of rank 1, ...: world_size times as long. With `counts`, the "
          "same on all ranks, rank r contributes counts[r] elements.")
      .def("reduce_scatter", &reduce_scatter, py::arg("array"), py::arg("out"), op, factor, stream,
           counts,
           "out = this rank's part of the reduction of array, which is world_size times as long. "
           "With `counts`, the same on all ranks, rank r gets counts[r] elements.")
      .def("all_to_all", &all_to_all, py::arg("array"), py::arg("out"), stream,
           py::arg("leaving") = py::none(), py::arg("arriving") = py::none(),
           "Part r of out = part number global_rank of rank r's array; both of the same length. "
           "With `leaving` and `arriving`, leaving[r] elements go to rank r and arriving[r] come "
           "from it.")
      .def("barrier", &barrier, stream, "Ends once all ranks have called it.");
}

}  // namespace tutti::python
