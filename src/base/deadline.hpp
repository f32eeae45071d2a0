// How long a wait may still last.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/time_source.hpp"

namespace tutti {

/** How long before its deadline a wait begins to ask who is to blame, to know it soon after. */
inline std::chrono::milliseconds inquiry_lead(std::chrono::milliseconds timeout) {
  return std::min(std::chrono::milliseconds(800), timeout * 3 / 4);
}

/**
 * The time from `last` to now, to which `last` is set, as far as it counts for a wait: one second
 * at most. So a process that was stopped and continued, or a machine that was suspended, does not
 * come back to find everybody else overdue.
 */
inline std::chrono::steady_clock::duration waited_since(
    std::chrono::steady_clock::time_point& last,
    std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now()) {
  constexpr std::chrono::steady_clock::duration kStep = std::chrono::seconds(1);
  return std::min(now - std::exchange(last, now), kStep);
}

/** A budget of waiting time, charged as waited_since() counts. */
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /** `time` outlives it. */
  explicit Deadline(std::chrono::milliseconds budget, const TimeSource& time = TimeSource::system())
      : time_(&time), left_(budget), last_(time.now()) {}

  /** Charges the time since the last call and tells whether the budget is spent. */
  bool expired() { return expires_within({}); }
  /** And whether no more than `rest` is left of it. */
  bool expires_within(std::chrono::milliseconds rest) {
    left_ -= waited_since(last_, time_->now());
    return left_ <= rest;
  }

 private:
  const TimeSource* time_;
  Clock::duration left_;
  Clock::time_point last_;
};

}  // namespace tutti
