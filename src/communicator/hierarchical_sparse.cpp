// Sums of sparse vectors over several hosts.
#include "communicator/hierarchical.hpp"
#include "communicator/sparse.hpp"

namespace tutti {

SparseStats HierarchicalTransport::sparse_all_reduce(const SparseView& in, View out,
                                                     Reduce reduce) {
  guarded([&] {
    agree(Signature::of(Operation::sparse_all_reduce, out.dtype, out.count, reduce));
    scatter(in, out);
  });
  all_reduce(out, out, reduce);
  SparseStats stats;
  stats.algorithm = SparseAlgorithm::dense;
  if (is_leader()) {
    stats.bytes_between = 2 * out.bytes() * (layout_.host_count() - 1) / layout_.host_count();
  }
  stats.bytes_sent = out.bytes() + stats.bytes_between;
  stats.entries = count_entries(out);
  stats.density =
      out.count == 0 ? 0.0 : static_cast<double>(stats.entries) / static_cast<double>(out.count);
  return stats;
}

}  // namespace tutti
