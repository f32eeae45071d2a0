// Runs random programs on simulated hosts, one for each seed.
//
//     simulation --seeds N [--first S]    N of them; prints those that fail, and exits with 1;
//                                         says how many of all had a fault or a mistaken call
//     simulation --seed S                 one, and how each rank has ended
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "simulation/trial.hpp"
#include "tutti/log.hpp"

namespace {

using tutti::test::simulated::FaultKind;
using tutti::test::simulated::Outcome;
using tutti::test::simulated::Plan;

struct Options {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1000;
  bool verbose = false;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const auto value = tutti::parse_number<std::uint64_t>(argv[i + 1]);
    if (!value) {
      std::fprintf(stderr, "simulation: %s has '%s', which is no number\n", argv[i], argv[i + 1]);
      return false;
    }
    if (name == "--seeds") {
      options.seeds = *value;
    } else if (name == "--first") {
      options.first = *value;
    } else if (name == "--seed") {
      options = {*value, 1, true};
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

/** Of all seeds. */
struct Counts {
  std::uint64_t faults = 0;  ///< of processes, hosts and links; early leavers among them
  std::uint64_t mistaken = 0;
  std::uint64_t failed = 0;
};

/** Whether all was as it must be. */
bool run(const Plan& plan, std::uint64_t seed, bool verbose) {
  Outcome outcome;
  try {
    outcome = run_trial(plan, seed);
  } catch (const std::exception& error) {
    outcome.complaints.emplace_back(error.what());
  }
  const bool is_right = outcome.complaints.empty();
  if (!is_right || verbose) std::fputs(report(plan, seed, outcome).c_str(), stdout);
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs("usage: simulation --seeds N [--first S] | --seed S\n", stderr);
    return 2;
  }
  // What ranks would say of their losses is judged here.
  tutti::set_log_sink(
      {[](tutti::LogLevel) { return false; }, [](tutti::LogLevel, std::string_view) {}});
  Counts counts;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    const Plan plan = tutti::test::simulated::draw_plan(options.first + i);
    const bool is_mistaken = plan.fault.kind == FaultKind::mistaken;
    if (is_mistaken) ++counts.mistaken;
    if (!is_mistaken && plan.fault.kind != FaultKind::none) ++counts.faults;
    if (!run(plan, options.first + i, options.verbose)) ++counts.failed;
  }
  const auto text = [](std::uint64_t count) { return std::to_string(count); };
  std::printf("%s seeds, %s of them with a fault and %s with a mistaken call, %s failed\n",
              text(options.seeds).c_str(), text(counts.faults).c_str(),
              text(counts.mistaken).c_str(), text(counts.failed).c_str());
  return counts.failed == 0 ? 0 : 1;
}
