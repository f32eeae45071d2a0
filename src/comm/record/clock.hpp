// The clock by which calls are timed.
#pragma once

#include <chrono>
#include <cstdint>

#include "device/cpu/ticks.hpp"

namespace tutti::record {

/** One moment on both clocks: the calls' own, and CLOCK_MONOTONIC, which all processes of a machine
 * share. */
struct Anchor {
  std::uint64_t ticks = 0;
  std::int64_t nanoseconds = 0;
};

/**
 * Counts ticks of a length that is not known: where the processor has a counter that can be trusted
 * its cycles, elsewhere nanoseconds of CLOCK_MONOTONIC, which take twice as long to read. What they
 * are in nanoseconds is found out afterwards, between two anchors (TickScale), so nothing has to be
 * calibrated before.
 */
class TickClock {
 public:
  TickClock() : counts_(cpu::has_ticks()) {}
  /** One of the same kind as another process'. */
  explicit TickClock(bool counts_ticks) : counts_(counts_ticks) {}

  bool counts_ticks() const { return counts_; }

  std::uint64_t now() const {
    return counts_ ? cpu::ticks() : static_cast<std::uint64_t>(monotonic());
  }
  /** This moment; within some ten nanoseconds, unless the thread is interrupted three times. */
  Anchor anchor() const;

  static std::int64_t monotonic() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

 private:
  bool counts_;
};

/** What ticks between two anchors, or near them, are on CLOCK_MONOTONIC. */
class TickScale {
 public:
  TickScale(const Anchor& earlier, const Anchor& later);

  std::int64_t nanoseconds(std::uint64_t ticks) const {
    return start_.nanoseconds + length(static_cast<std::int64_t>(ticks - start_.ticks));
  }
  /** Of a time that lasted so many nanoseconds. */
  std::int64_t ticks(std::int64_t nanoseconds) const {
    return static_cast<std::int64_t>(static_cast<double>(nanoseconds) / nanoseconds_a_tick_);
  }
  /** Of a time that lasted so many ticks. */
  std::int64_t length(std::int64_t ticks) const {
    return static_cast<std::int64_t>(static_cast<double>(ticks) * nanoseconds_a_tick_);
  }

 private:
  Anchor start_;
  double nanoseconds_a_tick_ = 1.0;
};

}  // namespace tutti::record
