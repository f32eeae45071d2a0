// Sums of sparse vectors between hosts: what a host's leader does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/recycled.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/layout.hpp"
#include "comm/sparse/packet.hpp"
#include "comm/sparse/plan.hpp"
#include "comm/sparse/sum.hpp"
#include "comm/wire.hpp"

namespace tutti {

/**
 * The sizes of packets that lie one behind the other. Where they were gathered, host h's packet of
 * range r is number h * gathered_ranges(hosts) + r; where ranges were summed up, that of range r is
 * number r.
 */
using PacketSizes = RecycledVector<PacketSize>;

/** In how many ranges each host's packets are when all have been gathered: the table of their sizes
 * is not to grow with the square of the hosts, so many hosts have one packet each. */
constexpr int gathered_ranges(int hosts) { return hosts > HostGroup::kMostDirect ? 1 : hosts; }

/** The range of the indices that host `host` of `hosts` sums up when they split, and its end. */
std::int64_t sparse_range(std::int64_t count, int hosts, int host);

/** Sums of up to so many elements have memory from the start for whatever they will hold. */
inline constexpr std::int64_t kMostReserved = std::int64_t{32} << 20U;

/** Memory for at least `bytes` bytes of packets of a sum of `count` elements: for so many as they
 * take at most or little more, where they pay, since else the vector itself travels. So sums of one
 * length ask for the same, however dense they are. */
Scratch packet_memory(Wire& wire, std::int64_t bytes, std::int64_t count);

/** out = the sum over the hosts, in their order, of the packets at `data`, each host's in so many
 * `ranges`, divided by `divisor`; how many elements are not zero. Throws CorruptPacket if one is.
 */
std::int64_t sum_packets(const PacketSizes& sizes, int ranges, const std::byte* data,
                         const Layout& layout, float* out, std::int64_t count,
                         std::int64_t divisor);

/**
 * One host's side. The host's sum is packed as it is made, range by range, whatever will become of
 * it; the leaders tell each other how long their packets are, and all come to the same plan. From
 * plan() on calls are collectives of the leaders: they block as those of a HostGroup do, and throw
 * PeerLost, and CorruptPacket of what another leader has sent.
 */
class SparseLeader {
 public:
  /** `leaders`, each of at most `ranks` ranks on its host, and what adds up for them; both outlive
   * it. */
  SparseLeader(const HostGroup& leaders, const AllReduce& all_reduce, int ranks)
      : leaders_(leaders),
        all_reduce_(all_reduce),
        ranks_(ranks),
        forced_(forced_sparse_algorithm()) {}

  /** Starts a sum of `count` elements. */
  void begin(std::int64_t count);
  /** Adds the elements below `end` of the ranks of this host; stretches ascend. */
  void add(std::int64_t end, std::span<const SparseView> parts);
  /** Ends the host's sum, and agrees with the other leaders on what to do. */
  SparsePlan plan();
  /** All hosts' packets, and their sizes. */
  Scratch gather(PacketSizes& sizes);
  /** The sums of all ranges, each made by one leader, and their sizes. */
  Scratch split(PacketSizes& sizes);
  /** Writes the host's sum to `out` and adds up with the other leaders', in the order of the hosts,
   * however many they are, as packets are. */
  void reduce_dense(float* out, std::int64_t divisor);

 private:
  int hosts() const { return leaders_.size(); }
  Scratch scratch(std::int64_t bytes) { return packet_memory(leaders_.wire(), bytes, count_); }
  void put(std::uint32_t index, float value);
  void next_range();
  /** Of the range `range`, from the leader of host `host`. */
  SparsePacket packet_of(const std::byte* data, const PacketSize& size, int range,
                         std::size_t host) const;
  RecycledVector<SparsePacket> own_packets(const std::byte* data) const;
  /** Packs the host's sum anew, in one packet for all indices. */
  void join_ranges();
  /** Every leader's `own`, of which there are as many on all. */
  template <class T>
  RecycledVector<T> gather_all(std::span<const T> own);
  /** From each leader what it has for this one; `own` is what this one has for each of them. */
  PacketSizes swap_all(const PacketSizes& own);
  void gather_packets(std::byte* memory, std::span<const std::int64_t> offsets);
  template <class Action>
  void timed(std::int64_t received, const Action& action);

  const HostGroup& leaders_;
  const AllReduce& all_reduce_;
  int ranks_;
  std::optional<SparseAlgorithm> forced_;
  std::int64_t count_ = 0;
  PacketWriter writer_;
  PacketSizes sizes_;  // of the packets by range, so far
  std::int64_t range_end_ = 0;
  SumBlock block_;
  std::vector<ViewCursor> cursors_;
  double seconds_per_byte_ = 1e-9;  // until something has been sent
};

}  // namespace tutti
