// How long calls take at most that follow each other, by the clock and of the processor's time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "ps/beside.hpp"

namespace tutti::bench {

/** Of many calls, in seconds. What two processes tell each other. */
struct Pauses {
  std::atomic<double> longest{0};
  std::atomic<double> work_of_longest{0};  ///< without what others had of the processor
  std::atomic<double> most_work{0};
  std::atomic<double> seldom{0};  ///< the time that one of 10 000 calls exceeds
};

/** Times calls. */
class PauseClock {
 public:
  PauseClock() { times_.reserve(std::size_t{1} << 26U); }

  template <class Call>
  void time(const Call& call) {
    const double work_before = processor_time();
    const auto start = std::chrono::steady_clock::now();
    call();
    const double time = since(start);
    const double work = processor_time() - work_before;
    most_work_ = std::max(most_work_, work);
    if (time > longest_) {
      longest_ = time;
      work_of_longest_ = work;
    }
    if (times_.size() < times_.capacity()) times_.push_back(time);
  }

  void tell(Pauses& pauses) {
    std::sort(times_.begin(), times_.end());
    pauses.longest = longest_;
    pauses.work_of_longest = work_of_longest_;
    pauses.most_work = most_work_;
    pauses.seldom = times_[times_.size() - 1 - times_.size() / 10'000];
  }

 private:
  std::vector<double> times_;
  double longest_ = 0;
  double work_of_longest_ = 0;
  double most_work_ = 0;
};

/** Reads cache lines of memory that nobody else has. It wants as much of it as what it is compared
 * with: a virtual machine may take long over addresses that it has not translated. */
class BareReader {
 public:
  explicit BareReader(std::size_t bytes) : lines_(bytes / kLine), memory_(lines_ * kLine) {}

  /** So many pairs of dependent lines, as a look-up of as many ids. */
  float read(std::size_t pairs) {
    const float* const lines = memory_.as<float>();
    float sum = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      const float first = lines[random_() % lines_ * kFloats];
      sum += first + lines[(random_() + static_cast<std::uint64_t>(first)) % lines_ * kFloats];
    }
    return sum;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kFloats = kLine / sizeof(float);
  std::size_t lines_;
  SharedPages memory_;
  std::mt19937_64 random_{7};
};

}  // namespace tutti::bench
