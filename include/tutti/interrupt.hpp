// Lets the caller of a blocking call look up from time to time, and end the wait.
#pragma once

#include <chrono>
#include <functional>

namespace tutti {

/**
 * While it lives, every wait of tutti on the thread that made it calls `look` about every 50 ms. An
 * exception from `look` ends the wait and leaves the call that waits; if that call was inside an
 * operation, its communicator is aborted, so that the other ranks get PeerLost naming this one. The
 * innermost of several counts. For languages whose signal handlers run between two calls.
 *
 * What happens on other threads is not touched: an operation on a worker stream goes on when the
 * wait for its Event has ended.
 */
class InterruptCheck {
 public:
  /** How long waits sleep at most between two looks. */
  static constexpr std::chrono::milliseconds kInterval{50};

  explicit InterruptCheck(std::function<void()> look);
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;
  ~InterruptCheck();

  /** Whether there is one on this thread. */
  static bool active();
  /** For loops that wait: looks if it is time to. */
  static void poll();

 private:
  using Clock = std::chrono::steady_clock;

  std::function<void()> look_;
  Clock::time_point next_;
  InterruptCheck* outer_;
};

}  // namespace tutti
