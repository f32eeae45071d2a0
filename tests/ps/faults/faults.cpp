// Injects faults into jobs of workers and servers, and judges how all of them take that.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ps/faults/judge.hpp"
#include "support/options.hpp"

namespace {

using tutti::ps::faults::Trial;
using tutti::ps::faults::Verdict;
using tutti::test::number_of;

constexpr int kAttempts = 3;  // of a trial whose processes were right but late

constexpr const char* kHelp =
    R"(ps_faults [OPTIONS]: injects faults into jobs of workers and servers

  --trials N  how many (100)
  --first K   the number of the first (0)
  --seed S    what is drawn (1)
  --trial K   that one alone, in detail
  --help      this text
)";

struct Options {
  bool help = false;
  std::uint32_t trials = 100;
  std::uint32_t first = 0;
  std::uint64_t seed = 1;
};

Options parse(std::span<char* const> arguments) {
  Options options;
  const auto take = [&options](std::string_view name, const std::string& value) {
    if (name == "--trials") {
      options.trials = number_of<std::uint32_t>(name, value);
    } else if (name == "--first") {
      options.first = number_of<std::uint32_t>(name, value);
    } else if (name == "--seed") {
      options.seed = number_of<std::uint64_t>(name, value);
    } else if (name == "--trial") {
      options.first = number_of<std::uint32_t>(name, value);
      options.trials = 1;
    } else {
      return false;
    }
    return true;
  };
  options.help = !tutti::test::take_options(arguments, take);
  return options;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run_all(const Options& options) {
  std::vector<double> steps;
  std::vector<double> told;
  int failures = 0;
  int repeated = 0;
  int apart = 0;
  for (std::uint32_t i = 0; i < options.trials; ++i) {
    const Trial trial(options.seed, static_cast<int>(options.first + i));
    Verdict verdict = run(trial);
    for (int attempt = 1; attempt < kAttempts && !verdict.late.empty() && verdict.wrong.empty();
         ++attempt) {
      ++repeated;
      verdict = run(trial);
    }
    if (options.trials == 1 || !verdict.wrong.empty() || !verdict.late.empty()) {
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
      "%u faults of seed %llu, %d failures, %d attempts repeated as late; in %d servers stood at "
      "different rounds, and said so of the last checkpoint; deaths and cuts were known to all "
      "after %.1f ms (median), %.1f ms at most; the longest step of those who wait for nobody: "
      "%.1f ms (median), %.1f ms at most\n",
      options.trials, static_cast<unsigned long long>(options.seed), failures, repeated, apart,
      1e3 * median(told), told.empty() ? 0.0 : 1e3 * *std::max_element(told.begin(), told.end()),
      1e3 * median(steps),
      steps.empty() ? 0.0 : 1e3 * *std::max_element(steps.begin(), steps.end()));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse({argv + 1, argv + argc});
    if (!options.help) return run_all(options);
    std::fputs(kHelp, stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ps_faults: %s\n", error.what());
    return 2;
  }
}
