// Makes tasks: what each kind counts, and how long a contribution is.
#include "comm/shm/task.hpp"

#include <algorithm>

namespace tutti::shm {
namespace {

std::int64_t most_of(std::span<const std::int64_t> counts) {
  return *std::max_element(counts.begin(), counts.end());
}

}  // namespace

Task Task::reduce(const ConstView& in, const View& out, const cpu::Combine& combine, int root) {
  return {.kind = TaskKind::reduce,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .combine = combine,
          .root = root,
          .count = in.count,
          .bytes = in.bytes()};
}

Task Task::reduce_scatter(const ConstView& in, const View& out, const cpu::Combine& combine) {
  return {.kind = TaskKind::reduce_scatter,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .combine = combine,
          .count = out.count,
          .bytes = in.bytes()};
}

Task Task::reduce_scatter(const ConstView& in, const View& out, const cpu::Combine& combine,
                          std::span<const std::int64_t> counts) {
  Task task = reduce_scatter(in, out, combine);
  task.counts = counts;
  task.count = most_of(counts);
  return task;
}

Task Task::spread(const ConstView& in, const View& out, int root) {
  return {.kind = TaskKind::spread,
          .dtype = out.dtype,
          .in = in,
          .out = out,
          .root = root,
          .count = out.count,
          .bytes = out.bytes()};
}

Task Task::gather(const ConstView& in, const View& out, std::span<const std::int64_t> counts,
                  int root) {
  const std::int64_t most = most_of(counts);
  return {.kind = TaskKind::gather,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .root = root,
          .counts = counts,
          .count = most,
          .bytes = most * size_of(in.dtype)};
}

Task Task::all_gather(const ConstView& in, const View& out) {
  return {.kind = TaskKind::all_gather,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .count = in.count,
          .bytes = in.bytes()};
}

Task Task::all_gather(const ConstView& in, const View& out, std::span<const std::int64_t> counts) {
  const std::int64_t most = most_of(counts);
  return {.kind = TaskKind::all_gather,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .counts = counts,
          .count = most,
          .bytes = most * size_of(in.dtype)};
}

Task Task::all_to_all(const ConstView& in, const View& out, int ranks) {
  return {.kind = TaskKind::all_to_all,
          .dtype = in.dtype,
          .in = in,
          .out = out,
          .count = in.count / ranks,
          .bytes = in.bytes()};
}

}  // namespace tutti::shm
