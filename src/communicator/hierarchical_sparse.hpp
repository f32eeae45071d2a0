// Sums of sparse vectors between hosts: what a host's leader does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "communicator/mpi/group.hpp"
#include "communicator/mpi/scratch.hpp"
#include "communicator/recycled.hpp"
#include "communicator/sparse_packet.hpp"
#include "communicator/sparse_plan.hpp"
#include "communicator/sparse_sum.hpp"

namespace tutti {

/** Packets of all hosts as one stretch of memory, and how to read it. */
struct SparsePackets {
  SparseAlgorithm algorithm = SparseAlgorithm::gather;
  std::int64_t bytes = 0;
  /** To gather, host h's packet of range r is number h * hosts + r; to split, the sum of range r is
   * number r. */
  RecycledVector<PacketSize> sizes;
};

/** The range of the indices that host `host` of `hosts` sums up when they split, and its end. */
std::int64_t sparse_range(std::int64_t count, int hosts, int host);

/** out = the sum over the hosts, in their order, of the packets at `data`, divided by `divisor`;
 * how many elements are not zero. */
std::int64_t sum_packets(const SparsePackets& packets, const std::byte* data, int hosts, float* out,
                         std::int64_t count, std::int64_t divisor);

/**
 * One host's side. The host's sum is packed as it is made, range by range, whatever will become of
 * it; the leaders tell each other how long their packets are, and all come to the same plan.
 */
class SparseLeader {
 public:
  /** Takes memory from `pool`, which outlives it. */
  SparseLeader(mpi::Group& leaders, mpi::ScratchPool& pool)
      : leaders_(leaders), pool_(pool), forced_(forced_sparse_algorithm()) {}

  /** Starts a sum of `count` elements. */
  void begin(std::int64_t count);
  /** Adds the elements below `end` of the ranks of this host; stretches ascend. */
  void add(std::int64_t end, std::span<const SparseView> parts);
  /** Ends the host's sum, and agrees with the other leaders on what to do. */
  SparsePlan plan();
  /** Exchanges packets with the other leaders; returns their memory. Gather or split. */
  mpi::Scratch exchange(SparsePackets& packets);
  /** Writes the host's sum to `out` and adds up with the other leaders'. */
  void reduce_dense(float* out, std::int64_t divisor);

  /** Sent to other leaders since begin(). */
  std::int64_t bytes_sent() const { return sent_; }

 private:
  int hosts() const { return leaders_.size(); }
  void put(std::uint32_t index, float value);
  void next_range();
  RecycledVector<Packet> own_packets() const;
  mpi::Scratch split(SparsePackets& packets);
  /** Every leader's `sizes`, which are as many on all. */
  RecycledVector<PacketSize> gather_sizes(std::span<const PacketSize> sizes);
  void all_gather(std::byte* memory, std::span<const std::int64_t> offsets);
  template <class Action>
  void timed(std::int64_t sent, std::int64_t received, const Action& action);

  mpi::Group& leaders_;
  mpi::ScratchPool& pool_;
  std::optional<SparseAlgorithm> forced_;
  std::int64_t count_ = 0;
  PacketWriter writer_;
  RecycledVector<PacketSize> sizes_;  // of the packets by range, so far
  std::int64_t range_end_ = 0;
  SumBlock block_;
  std::vector<ViewCursor> cursors_;
  RecycledVector<PacketSize> all_sizes_;  // of all leaders' packets
  std::int64_t sent_ = 0;
  double seconds_per_byte_ = 1e-9;  // until something has been sent
};

}  // namespace tutti
