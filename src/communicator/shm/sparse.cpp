// Sums of sparse vectors through shared memory.
#include "communicator/sparse.hpp"
#include "communicator/shm/transport.hpp"

namespace tutti::shm {

SparseStats ShmTransport::sparse_all_reduce(const SparseView& in, View out, Reduce reduce) {
  begin_checked(Signature::of(Operation::sparse_all_reduce, out.dtype, out.count, reduce));
  scatter(in, out);
  all_reduce(out, out, reduce);
  SparseStats stats;
  stats.bytes_sent = size() > 1 ? out.bytes() : 0;
  stats.entries = count_entries(out);
  stats.density =
      out.count == 0 ? 0.0 : static_cast<double>(stats.entries) / static_cast<double>(out.count);
  return stats;
}

}  // namespace tutti::shm
