// The pause between two looks at MPI: short at first, then long enough to leave the core alone.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace tutti {

/**
 * For loops that test MPI requests. MPI moves bytes only while it is called, so a wait looks
 * again and again: at first at once, yielding to whoever wants the core, then every 50 us.
 */
class Backoff {
 public:
  /** Pauses. Whether the pauses are long by now, so that there is time for other things too. */
  bool pause() {
    if (!sleeping_) {
      ::sched_yield();
      sleeping_ = Clock::now() - start_ > kSpin;
    } else {
      std::this_thread::sleep_for(kNap);
    }
    return sleeping_;
  }
  /** Something has moved: short pauses again. */
  void reset() {
    start_ = Clock::now();
    sleeping_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{200};
  static constexpr std::chrono::microseconds kNap{50};

  Clock::time_point start_ = Clock::now();
  bool sleeping_ = false;
};

}  // namespace tutti
