// A clock for tests.
#pragma once

#include <chrono>

#include "base/time_source.hpp"

namespace tutti::test {

/** Time that passes when it is told to. */
class Hand final : public TimeSource {
 public:
  Clock::time_point now() const override { return now_; }
  void sleep(Clock::duration time) const override { now_ += time; }

 private:
  mutable Clock::time_point now_{std::chrono::hours(1)};
};

}  // namespace tutti::test
