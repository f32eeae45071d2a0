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

  /** It does that, and this process something else; returns its rate. 0: it has ended. */
  double beside(std::size_t call, const std::function<void()>& meanwhile) {
    constexpr unsigned kToBegin = 2000;  // us
    const int turns = told_.turns;
    told_.call = static_cast<int>(call);
    ::usleep(kToBegin);
    meanwhile();
    told_.call = kNothing;
    while (told_.turns == turns) {
      if (::waitpid(child_, nullptr, WNOHANG) != 0) return 0;
      ::usleep(100);
    }
    return told_.rate;
  }

 private:
  static constexpr int kNothing = -1;
  struct Told {
    std::atomic<bool> ready{false};
    std::atomic<int> call{kNothing};
    std::atomic<int> turns{0};
    std::atomic<double> rate{0};
  };

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
      while (told_.call == call) calls[static_cast<std::size_t>(call)](batch++);
      told_.rate = static_cast<double>((batch - first) * batch_rows) / (processor_time() - start);
      ++told_.turns;
    }
  }

  SharedPages page_;
  Told& told_;
  pid_t child_ = -1;
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace tutti::bench
