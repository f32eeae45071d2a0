// Another process on the second processor, which does one of several things in turns with this one.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "ps/beside.hpp"

namespace tutti::bench {

/** Works whenever it is told to, and counts its rows a second of the processor's time. */
class Neighbour {
 public:
  using Call = std::function<void(std::size_t)>;  ///< of one batch

  /** make() is called in the new process, and returns what it can do. */
  Neighbour(std::size_t batch_rows, const std::function<std::vector<Call>()>& make)
      : page_(4096), told_(*new (page_.as<void>()) Told) {
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      use_processor(1);
      be(batch_rows, make());
      ::_exit(0);
    }
    use_processor(0);
    while (!told_.ready && ::waitpid(child_, nullptr, WNOHANG) == 0) ::usleep(100);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  ~Neighbour() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  /** It does that at least once, and from when it has begun this process something else; returns
   * its rate. 0: it has ended. */
  double beside(std::size_t call, const std::function<void()>& meanwhile) {
    ++turn_;
    told_.call = static_cast<int>(call);
    if (!reaches(told_.begun)) return 0;
    meanwhile();
    told_.call = kNothing;
    return reaches(told_.done) ? told_.rate.load() : 0;
  }

 private:
  static constexpr int kNothing = -1;
  struct Told {
    std::atomic<bool> ready{false};
    std::atomic<int> call{kNothing};
    std::atomic<int> begun{0};  ///< turns
    std::atomic<int> done{0};
    std::atomic<double> rate{0};
  };

  /** Waits until it has come to this turn; false: it has ended. */
  bool reaches(const std::atomic<int>& turns) const {
    while (turns != turn_) {
      if (::waitpid(child_, nullptr, WNOHANG) != 0) return false;
      ::usleep(100);
    }
    return true;
  }

  void be(std::size_t batch_rows, const std::vector<Call>& calls) {
    told_.ready = true;
    for (std::size_t batch = 0;;) {
      const int call = told_.call;
      if (call == kNothing) {
        ::usleep(100);
        continue;
      }
      const double start = processor_time();
      const std::size_t first = batch;
      ++told_.begun;
      do {
        calls[static_cast<std::size_t>(call)](batch++);
      } while (told_.call == call);
      told_.rate = static_cast<double>((batch - first) * batch_rows) / (processor_time() - start);
      ++told_.done;
    }
  }

  SharedPages page_;
  Told& told_;
  pid_t child_ = -1;
  int turn_ = 0;
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace tutti::bench
