// Adds the time that a scope takes to a number, and shows it in a timeline.
#pragma once

#include <chrono>

#include "comm/record/trace.hpp"

namespace tutti {

class Stopwatch {
 public:
  /** `name` is that of the slice in `trace`, which may be null. */
  Stopwatch(double& seconds, record::Trace* trace, const char* name)
      : seconds_(seconds), span_(trace, name) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  double& seconds_;
  record::Span span_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace tutti
