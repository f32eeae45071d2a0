// How a thread passes the time until others have done something.
#pragma once

#include <chrono>
#include <thread>

#include "base/deadline.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

/** Offers the core to another thread. */
inline void offer_core() { std::this_thread::yield(); }

/** What a wait does between two looks: first nothing, then next to nothing, and then it naps. */
struct WaitPolicy {
  using Duration = std::chrono::steady_clock::duration;

  int first_looks = 0;              ///< one right after the other, before the clock is read
  Duration spin{};                  ///< how long looks follow each other closely,
  void (*between)() = &offer_core;  ///< with this in between
  Duration nap = std::chrono::microseconds(50);  ///< between two looks from then on
  bool interruptible = true;                     ///< whether naps ask the thread's InterruptCheck
};

/**
 * One wait: a loop that looks, and pauses in between. Its time begins with the first pause, and is
 * counted by waited_since().
 */
class Waiter {
 public:
  using Duration = WaitPolicy::Duration;
  static constexpr std::chrono::milliseconds kForEver = std::chrono::hours(876'000);  // 100 years

  /** `policy` outlives it. */
  explicit Waiter(const WaitPolicy& policy, std::chrono::milliseconds timeout = kForEver)
      : policy_(&policy), timeout_(timeout) {}

  /** Looks as long as looks follow each other closely; whether done() holds. For waits that often
   * end before a pause would: it costs nothing but the looks if they end with the first. */
  template <class Done>
  bool spin(const Done& done) const {
    return look_first(done) || look_on(done);
  }
  /** The two parts of that: without the clock, */
  template <class Done>
  bool look_first(const Done& done) const {
    for (int i = 0; i < policy_->first_looks; ++i) {
      if (done()) return true;
    }
    return false;
  }
  /** and with it. */
  template <class Done>
  bool look_on(const Done& done) const {
    const auto start = Clock::now();
    do {
      for (int i = 0; i < kLooksPerClock; ++i) {
        if (done()) return true;
        policy_->between();
      }
    } while (Clock::now() - start < policy_->spin);
    return false;
  }

  /** A short pause or a nap; whether it was a nap, so that there is time for other things, too. */
  bool pause() {
    charge();
    if (waited_ < policy_->spin) {
      policy_->between();
      return false;
    }
    nap([](Duration limit) { std::this_thread::sleep_for(limit); });
    return true;
  }
  /** A nap: sleep(limit) may end earlier. Throws what the InterruptCheck throws. */
  template <class Sleep>
  void nap(const Sleep& sleep) {
    sleep(policy_->nap);
    if (policy_->interruptible) InterruptCheck::poll();
  }
  /** Something has moved: short pauses again, and the time begins anew. */
  void restart(std::chrono::milliseconds timeout) {
    timeout_ = timeout;
    begun_ = false;
    waited_ = last_due_ = {};
  }

  /** Whether the wait has lasted for its timeout. */
  bool expired() { return expires_within({}); }
  /** Whether no more than `rest` is left of that. */
  bool expires_within(std::chrono::milliseconds rest) {
    charge();
    return waited_ >= timeout_ - rest;
  }
  /** Whether `interval` of the wait has passed since this was last so. */
  bool due(Duration interval) {
    charge();
    if (waited_ - last_due_ < interval) return false;
    last_due_ = waited_;
    return true;
  }
  std::chrono::milliseconds waited() {
    charge();
    return std::chrono::duration_cast<std::chrono::milliseconds>(waited_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLooksPerClock = 50;

  void charge() {
    if (begun_) {
      waited_ += waited_since(last_);
    } else {
      begun_ = true;
      last_ = Clock::now();
    }
  }

  const WaitPolicy* policy_;
  std::chrono::milliseconds timeout_;
  bool begun_ = false;
  Clock::time_point last_{};
  Duration waited_{};
  Duration last_due_{};
};

}  // namespace tutti
