// Reductions whose results all members of a group get.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/hosts/group/around.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/segments.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

class DirectReduction;

/**
 * The all_reduces of a group: by DirectReduction, or by reduce_grouped() among many members. Two
 * that are not alone on their hosts give each other all of a long sum: as many bytes as in shards,
 * and nobody waits for results.
 */
class AllReduce {
 public:
  /** Which of several groups over the same hosts it is, that share the shards of a long sum: one
   * for each rank of a host. */
  struct LaneNumber {
    int number = 0;
    int of = 1;
  };

  /** `group` outlives it. Whether its members are all `alone` on their hosts: then nobody meets
   * others between windows, and longer ones take less time. A group that is one of several lanes
   * adds up only what is its own, see share_of_lane(). */
  AllReduce(const HostGroup& group, bool alone, LaneNumber lane)
      : group_(group), alone_(alone), lane_(lane) {}
  explicit AllReduce(const HostGroup& group, bool alone = false) : AllReduce(group, alone, {}) {}

  /** Whether the first window of `bytes` goes ahead of an agreement: if it is one message of
   * several, or may be more behind headers to all, and not among so many that they stand in groups.
   */
  bool goes_ahead(std::int64_t bytes) const {
    if (group_.goes_whole(bytes) || group_.stand_in_groups()) return false;
    return group_.is_centred() || !(is_pair(bytes) || has_long_windows(bytes));
  }
  /** Whether run() may be told where what it adds lies: see Around. */
  bool adds_from_elsewhere() const { return !group_.stand_in_groups(); }

  /** In place over `count` elements. A long message goes in segments: around.before() makes one
   * ready while those before it travel, and around.after() takes its results. Nothing is written
   * before around.agree() has returned. */
  void run(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine,
           const Around& around) const;
  void run(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine) const {
    run(data, count, dtype, combine, {});
  }
  /** The same, but in the order of the hosts however long it is, and however many they are. */
  void run_in_order(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine) const;
  /** By who is no member: makes the calls of `around` in the order in which members make them. */
  void accompany(std::int64_t count, DType dtype, const Around& around) const;
  /** Of `count` elements, which one of these calls is for, of `total` in all: so many are of each
   * lane, one behind the other; of the last ones fewer, or none. */
  std::int64_t share_of_lane(std::int64_t count, std::int64_t total, DType dtype) const;
  /** The elements of the first of these calls. */
  std::int64_t first_segment(std::int64_t count, DType dtype) const;

 private:
  /** Whether windows are longer than a piece: not where one would be all of a shard, nor among so
   * many members, with others on their hosts, that windows which go ahead are messages by
   * themselves. */
  bool has_long_windows(std::int64_t bytes) const {
    return bytes > group_.size() * Wire::kPiece &&
           (alone_ ? !group_.stand_in_groups() : group_.is_centred());
  }
  /** Whether two members give each other all: see reduce_pair(). Not if they are alone, who take
   * longer for it. */
  bool is_pair(std::int64_t bytes) const {
    return group_.size() == 2 && !alone_ && bytes > 4 * Wire::kPiece;
  }
  Segments segments_of(std::int64_t bytes) const;
  Segments direct_segments(std::int64_t bytes) const;
  Segments pair_segments(std::int64_t bytes) const;
  std::int64_t posted_behind(std::int64_t bytes, std::int64_t window) const;
  void reduce_segments(const DirectReduction& reduction, std::byte* data, const SegmentCalls& calls,
                       const Agree& agree) const;
  void reduce_pair(const DirectReduction& reduction, std::byte* data,
                   const SegmentCalls& calls) const;

  const HostGroup& group_;
  bool alone_;
  LaneNumber lane_;
};

}  // namespace tutti
