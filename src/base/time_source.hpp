// Where the code that gives up on others has its time from.
#pragma once

#include <chrono>

namespace tutti {

/** A clock, and a way to pass time by it: the system's, or a simulation's. */
class TimeSource {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~TimeSource() = default;
  virtual Clock::time_point now() const = 0;
  /** Blocks the caller for `time`. */
  virtual void sleep(Clock::duration time) const = 0;

  /** std::chrono::steady_clock. */
  static const TimeSource& system();
};

}  // namespace tutti
