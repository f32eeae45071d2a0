// How long a wait may still last.
#pragma once

#include <algorithm>
#include <chrono>

namespace tutti {

/**
 * A budget of waiting time. It counts the time that this process actually spent looking, in steps
 * of at most kStep: a process that was stopped and continued, or a machine that was suspended,
 * does not come back to find everybody else overdue.
 */
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kStep{1000};

  explicit Deadline(std::chrono::milliseconds budget) : left_(budget), last_(Clock::now()) {}

  /** Charges the time since the last call and tells whether the budget is spent. */
  bool expired() {
    const auto now = Clock::now();
    left_ -= std::min<Clock::duration>(now - last_, kStep);
    last_ = now;
    return left_ <= Clock::duration::zero();
  }

 private:
  Clock::duration left_;
  Clock::time_point last_;
};

}  // namespace tutti
