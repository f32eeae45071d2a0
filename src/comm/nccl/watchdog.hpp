// Looks after a call that may not return.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace tutti::nccl {

/**
 * A thread that calls action(waited) every 50 ms while a call lasts, once it has lasted that long.
 * It sleeps when there are no calls for a second, and costs a call two looks at the clock. No
 * action is under way when a call has returned.
 */
class Watchdog {
 public:
  using Action = std::function<void(std::chrono::milliseconds waited)>;

  explicit Watchdog(Action action) : action_(std::move(action)) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /** A call; one at a time. */
  class Guard {
   public:
    explicit Guard(Watchdog& watchdog) : watchdog_(watchdog) { watchdog_.enter(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { watchdog_.leave(); }

   private:
    Watchdog& watchdog_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::rep kNever = -1;

  void enter();
  void leave();
  void run();
  /** Whether a call was under way. */
  bool look();

  Action action_;
  std::atomic<Clock::rep> since_ = kNever;  // when the call began
  std::atomic<bool> sleeping_ = true;       // there is nobody to look; also before the first call
  std::mutex looking_;                      // while it looks after a call
  std::mutex mutex_;
  std::condition_variable woken_;
  bool closing_ = false;
  std::thread thread_;  // from the first call on
};

}  // namespace tutti::nccl
