// Checks the arguments of operations that cut memory into one block a rank.
#include <numeric>

#include "comm/arguments.hpp"
#include "comm/communicator/communicator_impl.hpp"

namespace tutti {
namespace {

void check_both(const ConstView& in, const View& out) {
  check_view("in", in);
  check_view("out", out);
  check_same_dtype(in, out);
  check_same_device(in, out);
}

/** Where the block of `rank` begins. */
std::int64_t start_of(std::span<const std::int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

std::int64_t count_of(std::span<const std::int64_t> counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}

}  // namespace

Event Communicator::gather(ConstView in, View out, int root, const Stream& stream) {
  check_rank("root", root, world_size());
  check_view("in", in);
  if (global_rank() == root) {
    check_both(in, out);
    check_count("out", out, in.count * world_size(), "world_size times in.count");
    check_overlap(in, out, in.count * root);
  }
  return impl()->run(Call::gather(in, out, root), stream);
}

Event Communicator::gather_v(ConstView in, View out, std::span<const std::int64_t> counts, int root,
                             const Stream& stream) {
  check_rank("root", root, world_size());
  const std::int64_t total = check_counts("counts", counts, world_size());
  check_view("in", in);
  check_count("in", in, count_of(counts, global_rank()), "counts[global_rank]");
  if (global_rank() == root) {
    check_both(in, out);
    check_count("out", out, total, "the sum of counts");
    check_overlap(in, out, start_of(counts, root));
  }
  return impl()->run(Call::gather_v(in, out, counts, root), stream);
}

Event Communicator::scatter(ConstView in, View out, int root, const Stream& stream) {
  check_rank("root", root, world_size());
  check_view("out", out);
  if (global_rank() == root) {
    check_both(in, out);
    check_count("in", in, out.count * world_size(), "world_size times out.count");
    check_overlap(in, out, out.count * root);
  }
  return impl()->run(Call::scatter(in, out, root), stream);
}

Event Communicator::scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                              int root, const Stream& stream) {
  check_rank("root", root, world_size());
  const std::int64_t total = check_counts("counts", counts, world_size());
  check_view("out", out);
  check_count("out", out, count_of(counts, global_rank()), "counts[global_rank]");
  if (global_rank() == root) {
    check_both(in, out);
    check_count("in", in, total, "the sum of counts");
    check_overlap(in, out, start_of(counts, root));
  }
  return impl()->run(Call::scatter_v(in, out, counts, root), stream);
}

Event Communicator::all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts,
                                 const Stream& stream) {
  check_both(in, out);
  const std::int64_t total = check_counts("counts", counts, world_size());
  check_count("in", in, count_of(counts, global_rank()), "counts[global_rank]");
  check_count("out", out, total, "the sum of counts");
  check_overlap(in, out, start_of(counts, global_rank()));
  return impl()->run(Call::all_gather_v(in, out, counts), stream);
}

Event Communicator::reduce_scatter(ConstView in, View out, Reduce reduce, const Stream& stream) {
  check_both(in, out);
  check_count("in", in, out.count * world_size(), "world_size times out.count");
  check_reduce(reduce, in.dtype, in.device);
  check_overlap(in, out, out.count * global_rank());
  return impl()->run(Call::reduce_scatter(in, out, reduce), stream);
}

Event Communicator::reduce_scatter_v(ConstView in, View out, std::span<const std::int64_t> counts,
                                     Reduce reduce, const Stream& stream) {
  check_both(in, out);
  const std::int64_t total = check_counts("counts", counts, world_size());
  check_count("in", in, total, "the sum of counts");
  check_count("out", out, count_of(counts, global_rank()), "counts[global_rank]");
  check_reduce(reduce, in.dtype, in.device);
  check_overlap(in, out, start_of(counts, global_rank()));
  return impl()->run(Call::reduce_scatter_v(in, out, counts, reduce), stream);
}

Event Communicator::all_to_all(ConstView in, View out, const Stream& stream) {
  check_both(in, out);
  check_count("out", out, in.count, "as many as in");
  if (in.count % world_size() != 0) {
    throw InvalidArgument("in.count is " + std::to_string(in.count) +
                          ", but must be a multiple of world_size, which is " +
                          std::to_string(world_size()));
  }
  check_overlap(in, out, 0);
  return impl()->run(Call::all_to_all(in, out, world_size()), stream);
}

Event Communicator::all_to_all_v(ConstView in, std::span<const std::int64_t> leaving, View out,
                                 std::span<const std::int64_t> arriving, const Stream& stream) {
  check_both(in, out);
  check_count("in", in, check_counts("leaving", leaving, world_size()), "the sum of leaving");
  check_count("out", out, check_counts("arriving", arriving, world_size()), "the sum of arriving");
  check_apart("in", in, "out", out);
  return impl()->run(Call::all_to_all_v(in, leaving, out, arriving), stream);
}

}  // namespace tutti
