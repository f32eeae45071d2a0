// What one all_reduce of 4 KiB costs in C++, for python_call.py to compare: two forked ranks, in
// place on private memory. Prints the median of `rounds` calls in microseconds: call_bench
// [ROUNDS].
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <vector>

#include "support/numbers.hpp"
#include "tutti/communicator.hpp"

namespace {

constexpr std::size_t kElements = 1024;

/** Seconds of each call; the first tenth warms up. Ends the process if a result is wrong. */
std::vector<double> time_calls(tutti::Communicator& communicator, int rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> data(kElements);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    std::fill(data.begin(), data.end(), static_cast<float>(communicator.global_rank() + 1));
    const auto start = Clock::now();
    communicator.all_reduce(std::span(data));
    const std::chrono::duration<double> took = Clock::now() - start;
    if (data.front() != 3.0F || data.back() != 3.0F) {
      std::fprintf(stderr, "call_bench: a wrong sum\n");
      std::exit(1);
    }
    if (round >= rounds / 10) seconds.push_back(took.count());
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? tutti::bench::number_of("ROUNDS", argv[1], 1) : 20000;
  const tutti::UniqueId id = tutti::UniqueId::create();
  const pid_t child = fork();
  tutti::Communicator communicator(child == 0 ? 1 : 0, 2, id);
  std::vector<double> seconds = time_calls(communicator, rounds);
  if (child == 0) return 0;
  std::nth_element(seconds.begin(),
                   seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  std::printf("%.3f\n", seconds[seconds.size() / 2] * 1e6);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "call_bench: %s\n", error.what());
  return 1;
}
