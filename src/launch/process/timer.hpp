// Moments at which a poll loop has something to do.
#pragma once

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>

namespace tutti::launch {

using SteadyClock = std::chrono::steady_clock;

/** A moment that may lie ahead. */
class Timer {
 public:
  void start(SteadyClock::duration from_now) { moment_ = SteadyClock::now() + from_now; }
  void stop() { moment_.reset(); }
  bool set() const { return moment_.has_value(); }
  /** Whether it is set and has come. */
  bool due() const { return set() && SteadyClock::now() >= *moment_; }
  /** Never before that, if it is set. */
  std::optional<SteadyClock::time_point> moment() const { return moment_; }

 private:
  std::optional<SteadyClock::time_point> moment_;
};

/** The timeout of a poll() that ends when the first of these timers is due, in milliseconds; -1 if
 * none is set. */
inline int poll_timeout(std::initializer_list<const Timer*> timers) {
  std::optional<SteadyClock::time_point> first;
  for (const Timer* const timer : timers) {
    if (timer->set() && (!first || *timer->moment() < *first)) first = timer->moment();
  }
  if (!first) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - SteadyClock::now());
  return static_cast<int>(std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 3'600'000));
}

}  // namespace tutti::launch
