// Who keeps the others waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tutti::record {

/**
 * How long this rank has waited for each other one to come to collectives. The time of a wait is
 * that of the rank which came last. By one thread at a time, as collectives are.
 */
class Lateness {
 public:
  static constexpr std::int64_t kCalls = 100;  ///< that are judged together
  static constexpr double kCostly = 0.1;       ///< of the time that they took

  /** A rank that cost this one more than kCostly of its time over kCalls collectives. */
  struct Finding {
    int rank = 0;
    double share = 0;  ///< of the time
  };

  explicit Lateness(int ranks)
      : waited_(static_cast<std::size_t>(ranks)), before_(waited_.size()) {}

  void add(int rank, std::uint64_t ticks) {
    waited_[static_cast<std::size_t>(rank)] += ticks;
    in_window_ += ticks;
  }
  /** A collective has ended at `now`. The costliest rank of the last kCalls, if it is too costly.
   */
  std::optional<Finding> count(std::uint64_t now) {
    if (++calls_ % kCalls != 0) return std::nullopt;
    return judge(now);
  }

  /** In ticks, by rank. */
  std::span<const std::uint64_t> waited() const { return waited_; }

 private:
  std::optional<Finding> judge(std::uint64_t now);

  std::vector<std::uint64_t> waited_;
  std::vector<std::uint64_t> before_;  // when the window began
  std::uint64_t in_window_ = 0;
  std::uint64_t window_ = 0;  // when it began
  std::int64_t calls_ = 0;
};

}  // namespace tutti::record
