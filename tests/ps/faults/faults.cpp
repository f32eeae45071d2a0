// Injects faults into jobs of workers and servers: ps_faults [--trials N] [--seed S] [--first I]
// [--trial I]. A trial whose processes were right but late is repeated up to twice.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "ps/faults/judge.hpp"

namespace {

using tutti::ps::faults::Trial;
using tutti::ps::faults::Verdict;

constexpr int kAttempts = 3;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  int trials = 100;
  int first = 0;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    const long long value = std::stoll(argv[i + 1]);
    if (option == "--trials") trials = static_cast<int>(value);
    if (option == "--first" || option == "--trial") first = static_cast<int>(value);
    if (option == "--trial") trials = 1;
    if (option == "--seed") seed = static_cast<std::uint64_t>(value);
  }
  std::vector<double> steps;
  std::vector<double> told;
  int failures = 0;
  int repeated = 0;
  int apart = 0;
  for (int number = first; number < first + trials; ++number) {
    const Trial trial(seed, number);
    Verdict verdict = run(trial);
    for (int attempt = 1; attempt < kAttempts && !verdict.late.empty() && verdict.wrong.empty();
         ++attempt) {
      ++repeated;
      verdict = run(trial);
    }
    if (trials == 1 || !verdict.wrong.empty() || !verdict.late.empty()) {
      std::printf("%s: %s%s\n", trial.text().c_str(), verdict.wrong.c_str(), verdict.late.c_str());
      std::fflush(stdout);
    }
    if (!verdict.wrong.empty() || !verdict.late.empty()) ++failures;
    if (verdict.rounds_differ) ++apart;
    if (verdict.longest_step > 0) steps.push_back(verdict.longest_step);
    if (verdict.told_after > 0 && trial.fault != tutti::ps::faults::Fault::stop) {
      told.push_back(verdict.told_after);
    }
  }
  std::printf(
      "%d faults of seed %llu, %d failures, %d attempts repeated as late; in %d servers stood at "
      "different rounds, and said so of the last checkpoint; deaths and cuts were known to all "
      "after %.1f ms (median), %.1f ms at most; the longest step of those who wait for nobody: "
      "%.1f ms (median), %.1f ms at most\n",
      trials, static_cast<unsigned long long>(seed), failures, repeated, apart, 1e3 * median(told),
      told.empty() ? 0.0 : 1e3 * *std::max_element(told.begin(), told.end()), 1e3 * median(steps),
      steps.empty() ? 0.0 : 1e3 * *std::max_element(steps.begin(), steps.end()));
  return failures == 0 ? 0 : 1;
}
