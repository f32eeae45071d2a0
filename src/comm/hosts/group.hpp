// Collectives between hosts: direct exchange among the hosts' leaders over a Wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/recycled.hpp"
#include "comm/batch.hpp"
#include "device/cpu/kernels.hpp"

namespace tutti {

/**
 * The collectives of one rank per host. Positions are indices into `members`, which are global
 * ranks in the order of the hosts. All calls block, at most to the wire's deadline; memory is
 * this process's own. Apart from agree() nothing is checked here.
 *
 * Every shard goes straight to its owner, who adds the hosts' contributions in the order of the
 * hosts and hands the result straight to everybody: 2 (H-1)/H times the bytes a link, which is
 * the least there is, one rounding for 16-bit types, and an order of additions that does not
 * depend on the shard. Source: direct (pairwise) reduce-scatter and all-gather, Thakur,
 * Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
 * Shards travel in windows, so that adding, sending and receiving overlap and temporary memory
 * stays small. Small messages go whole to everybody, who adds them all: one round, the same order.
 */
class HostGroup {
 public:
  static constexpr std::int64_t kCacheLine = 64;  ///< in bytes

  /** `wire` outlives it. Only members make calls. */
  HostGroup(Wire& wire, std::vector<int> members);

  int position() const { return position_; }
  int size() const { return static_cast<int>(members_.size()); }
  /** The global rank of member `position`. */
  int member(std::size_t position) const { return members_[position]; }

  /**
   * Whether all members came with the same `hash`; all get the same answer. Also a barrier: none
   * returns before all have called. One round, in which everybody sends to everybody; `carried`,
   * at most kMostCarried bytes, goes along.
   */
  bool agree(std::uint64_t hash, std::span<const std::byte> carried = {});
  /** The member, as a rank, whose message to the last agree() came last. */
  int last() const { return last_; }
  /** With the hash and MPI's header, one message of 4 KiB, which Open MPI sends without asking. */
  static constexpr std::int64_t kMostCarried = 4032;
  /** Whether to send so many bytes along saves time. */
  bool carries(std::int64_t bytes) const { return bytes <= kMostCarried && goes_whole(bytes); }
  /** What member `position` sent along with the last agree(), until the next call. */
  const std::byte* carried(int position) const { return slot(position) + kCacheLine; }
  /** The combination of what all members sent along: `count` elements, to `out`. */
  void combine_carried(void* out, std::int64_t count, DType dtype, const cpu::Combine& combine);

  /** Every member's `in`, in the order of members: out is size() times in. `in` may be this
   * member's block of `out`. */
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out);
  /** The same with blocks of different length, in place: block i of `data` is offsets[i] to
   * offsets[i+1], and this rank's own is filled in. */
  void all_gather_v(std::byte* data, std::span<const std::int64_t> offsets);
  /** Block j of `in` goes to member j, and member i's block for this one to block i of `out`; this
   * one's own is copied. Offsets as above; `out` fits what the members send. */
  void all_to_all_v(std::byte* in, std::span<const std::int64_t> in_offsets, std::byte* out,
                    std::span<const std::int64_t> out_offsets);
  /** From member `root` to all, in place. */
  void broadcast(std::byte* data, std::int64_t bytes, int root);
  /** In place over `count` elements. */
  void all_reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine);
  /** In place: afterwards block position() of `data` (element offsets) holds the reduction of
   * that block; the other blocks are undefined. */
  void reduce_scatter_v(void* data, std::span<const std::int64_t> offsets, DType dtype,
                        const cpu::Combine& combine);
  /** In place at member `root`; elsewhere `data` is undefined afterwards. */
  void reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine, int root);

 private:
  /** Who gets the results of a reduction, besides the owners of the shards. */
  static constexpr int kNobody = -1;
  static constexpr int kEverybody = -2;
  /** A round between hosts takes as long as this many bytes: sending more to save one does not
   * pay. */
  static constexpr std::int64_t kSmall = std::int64_t{16} * 1024;
  static constexpr std::int64_t kSlot = kCacheLine + kMostCarried;

  /** Bytes of `data` cut at `offsets`, each shard in windows of `window` bytes. */
  struct Shards {
    std::byte* data;
    RecycledVector<std::int64_t> offsets;
    std::int64_t window;

    std::int64_t windows() const;
    std::span<std::byte> part(int owner, std::int64_t number) const;
  };

  /** Whether a message is so short that everybody gets all of it at once. */
  bool goes_whole(std::int64_t bytes) const { return bytes * (size() - 1) <= kSmall; }
  int peer(int distance) const { return (position_ + distance) % size(); }
  void send(Batch& batch, std::span<const std::byte> part, int position);
  void recv(Batch& batch, std::span<std::byte> part, int position);
  /** Offsets in bytes of shards of equal length, in whole cache lines, one for each member but
   * `without`, whose shard is empty. */
  RecycledVector<std::int64_t> even_offsets(std::int64_t bytes, int without) const;
  /** Where a member's message to agree() lies: a hash at the end of a line, then the rest. */
  std::byte* slot(int position) const { return slots_.get() + position * kSlot; }
  void combine_here(std::byte* own, const std::byte* others, std::int64_t stride,
                    std::int64_t bytes, DType dtype, const cpu::Combine& combine);
  void reduce_whole(std::byte* data, std::int64_t bytes, DType dtype, const cpu::Combine& combine);
  void reduce_shards(const Shards& shards, DType dtype, const cpu::Combine& combine, int receivers);
  template <class First, class Between, class Second>
  void pipeline(std::int64_t windows, const First& first, const Between& between,
                const Second& second);

  Wire& wire_;
  std::vector<int> members_;
  int position_ = 0;
  int last_ = 0;
  std::shared_ptr<std::byte[]> slots_;  // made by the first agree()
};

}  // namespace tutti
