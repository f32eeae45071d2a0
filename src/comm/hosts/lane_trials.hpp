// Whether long sums go in lanes or by the leaders of hosts: which takes less time is found out.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "comm/trials.hpp"

namespace tutti {

/** The trials of one communicator, by class of sizes, and how long they take a leader. */
class LaneTrials {
 public:
  /** The ways. */
  static constexpr int kInLanes = 0;
  static constexpr int kByLeaders = 1;

  using Now = std::function<std::chrono::steady_clock::time_point()>;

  /** Of sums of `fewest` bytes and more, on hosts of `ranks` ranks each. */
  LaneTrials(std::int64_t fewest, int ranks) : first_(size_class_of(fewest)) {
    for (std::size_t power = first_; power < kSizeClasses; ++power) {
      const std::int64_t most = std::int64_t{1} << power;
      trials_.emplace_back(2, samples_of(most), warm_up_of(most, ranks));
    }
  }

  /** Those of a sum of `bytes` bytes, no less than the fewest. */
  Trials& of(std::int64_t bytes) { return trials_[size_class_of(bytes) - first_]; }
  /** From now on a call takes time. */
  void start() { started_ = now_(); }
  /** What a sum of `bytes` bytes has taken since then: in nanoseconds a KiB, as sizes of one class
   * differ by up to two. */
  std::uint32_t cost_of(std::int64_t bytes) const {
    const std::chrono::nanoseconds spent = now_() - started_;
    return static_cast<std::uint32_t>(
        std::min<std::int64_t>(spent.count() / (bytes / 1024), UINT32_MAX));
  }
  /** By another clock; for tests. */
  void time_by(Now now) { now_ = std::move(now); }

 private:
  /** Until the ranks of a host have tried their own ways, which they do for each segment, costs do
   * not count. A segment has `kShare` bytes for each rank of a host where there are two hosts, and
   * about as many where there are more. */
  static int warm_up_of(std::int64_t bytes, int ranks) {
    constexpr std::int64_t kShare = std::int64_t{512} << 10;
    constexpr std::int64_t kSegments = 40;
    const std::int64_t segments = std::max<std::int64_t>(bytes / (kShare * ranks), 1);
    return static_cast<int>(std::max<std::int64_t>(kSegments / segments, 1));
  }

  std::size_t first_;  // the class of the shortest sums
  std::vector<Trials> trials_;
  Now now_ = &std::chrono::steady_clock::now;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace tutti
