// Kills or stops a rank in the middle of a collective and looks how the others take it.
//
//   kill_rig --signal kill|stop|all [--trials N] [--seed S] [--ranks N] [--work NAME]
//
// A trial forks 2 to 4 ranks that repeat one kind of collective, and sends a signal to one of them
// at a random moment. Every other rank must end with PeerLost that names exactly that rank, in
// time, and nothing may stay in /dev/shm. With `all`, all ranks are killed at once, and the next
// start must sweep up what they left. The moments depend on the seed, which is printed.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rig/processes.hpp"
#include "rig/work.hpp"
#include "support/leftovers.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 4;
constexpr std::chrono::milliseconds kTimeout = 2s;    // of the communicators
constexpr std::chrono::milliseconds kGrace = 2s;      // for noticing, and for leaving
constexpr std::chrono::milliseconds kPatience = 30s;  // for ranks that should do something

enum class Target { kill_one, stop_one, kill_all };

struct Options {
  Target target = Target::kill_one;
  int trials = 0;  ///< 0: one for each kind of work
  std::uint64_t seed = 1;
  int ranks = 0;  ///< 0: 2, 3 and 4 in turn
  std::string work;
};

using Reports = Shared<std::array<Report, kMostRanks>>;
Report& report_of(const Reports& reports, int rank) {
  return (*reports)[static_cast<std::size_t>(rank)];
}

/** Making communicators over and over is work of its own: it has none to work on. */
constexpr std::string_view kJoin = "join";

std::string join_until_lost(int rank, int ranks, const UniqueId& id,
                            const std::function<void()>& before_each_call) {
  const Work join{kJoin, [&](Communicator&) -> std::function<void()> {
                    return [&, number = std::uint64_t{0}]() mutable {
                      Communicator(rank, ranks, derive(id, ++number), short_timeout(kTimeout));
                    };
                  }};
  Communicator alone(0, 1, UniqueId::create());
  return work_until_lost(alone, join, before_each_call);
}

/** The life of a rank. */
void be_rank(int rank, int ranks, const UniqueId& id, const Work* work, Report& report) {
  std::string outcome;
  const auto count = [&] { report.calls.fetch_add(1); };
  try {
    if (work == nullptr) {
      outcome = join_until_lost(rank, ranks, id, count);
    } else {
      Communicator communicator(rank, ranks, id, short_timeout(kTimeout));
      outcome = work_until_lost(communicator, *work, count);
    }
  } catch (const std::exception& error) {
    outcome = std::string("could not start: ") + error.what();
  }
  report.end_with(outcome);
}

struct Trial {
  int ranks = 0;
  int victim = 0;
  std::uint64_t calls = 0;  ///< that the victim has begun when the signal comes
  int spins = 0;            ///< how long after that
  const Work* work = nullptr;

  std::string_view name() const { return work == nullptr ? kJoin : work->name; }
};

/** Forks the ranks of a trial. */
void start(Processes& processes, const Trial& trial, const Reports& reports) {
  const UniqueId id = UniqueId::create();
  for (int rank = 0; rank < trial.ranks; ++rank) {
    processes.start(
        [&, rank] { be_rank(rank, trial.ranks, id, trial.work, report_of(reports, rank)); });
  }
}

/** Spins, so that the moment is fine-grained, until the victim is in its last call. */
void wait_for_the_moment(const Trial& trial, const Reports& reports) {
  const auto deadline = Clock::now() + kPatience;
  while (report_of(reports, trial.victim).calls.load() < trial.calls) {
    for (int rank = 0; rank < trial.ranks; ++rank) {
      if (report_of(reports, rank).ended) {
        throw std::runtime_error("a rank ended before the signal: " +
                                 std::string(report_of(reports, rank).outcome.data()));
      }
    }
    if (Clock::now() > deadline) throw std::runtime_error("the ranks do not work");
  }
  for (std::atomic<int> i = 0; i < trial.spins; ++i) {
  }
}

/** Files that stay, after the next start has swept. */
std::string remains(const Leftovers& before) {
  const Communicator next(0, 1, UniqueId::create());
  return before.in_dev_shm();
}

/** What is wrong with the end of a survivor; empty if nothing is. */
std::string complaint(const std::optional<int>& status, const std::string& outcome, int victim) {
  if (!status) return "did not end in time; " + (outcome.empty() ? "it waits" : outcome);
  if (!WIFEXITED(*status)) return "crashed";
  return outcome.starts_with("lost " + std::to_string(victim) + ":") ? "" : outcome;
}

/** One rank gets a signal. Returns how long the last of the others took. */
std::chrono::milliseconds strike_one(const Trial& trial, int signal) {
  const Leftovers before;
  const Reports reports;
  Processes ranks;
  start(ranks, trial, reports);
  wait_for_the_moment(trial, reports);
  const auto struck = Clock::now();
  ranks.send(trial.victim, signal);

  // Who did not come to join, or was stopped, is missed only when the time is up.
  const bool noticed_at_once = signal == SIGKILL && trial.work != nullptr;
  const auto limit = noticed_at_once ? kGrace : kTimeout + 3 * kGrace;
  for (int rank = 0; rank < trial.ranks; ++rank) {
    if (rank == trial.victim) continue;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(struck + limit - Clock::now());
    const std::optional<int> status = ranks.wait(rank, std::max(left, 1ms));
    const std::string what =
        complaint(status, report_of(reports, rank).outcome.data(), trial.victim);
    if (!what.empty()) throw std::runtime_error("rank " + std::to_string(rank) + " " + what);
  }
  const auto took = Clock::now() - struck;
  ranks.send(trial.victim, SIGKILL);
  ranks.wait(trial.victim, kPatience);
  // Creating is what may be cut short; what was complete must leave nothing even without a sweep.
  const bool creates = trial.work == nullptr || trial.name() == "split";
  const std::string files = creates ? remains(before) : before.in_dev_shm();
  if (!files.empty()) throw std::runtime_error("left in /dev/shm: " + files);
  return std::chrono::duration_cast<std::chrono::milliseconds>(took);
}

/** All ranks are killed. */
std::chrono::milliseconds strike_all(const Trial& trial) {
  const Leftovers before;
  const Reports reports;
  Processes ranks;
  start(ranks, trial, reports);
  wait_for_the_moment(trial, reports);
  for (int rank = 0; rank < trial.ranks; ++rank) ranks.send(rank, SIGKILL);
  for (int rank = 0; rank < trial.ranks; ++rank) {
    if (!ranks.wait(rank, kPatience)) throw std::runtime_error("a rank survived");
  }
  const std::string files = remains(before);
  if (!files.empty()) throw std::runtime_error("left in /dev/shm: " + files);
  return 0ms;
}

int run(const Options& options) {
  std::mt19937_64 random(options.seed);
  const auto below = [&](std::uint64_t limit) { return static_cast<int>(random() % limit); };
  std::vector<const Work*> choices;
  for (const Work& work : all_work()) {
    if (options.work.empty() || work.name == options.work) choices.push_back(&work);
  }
  if (options.work.empty() || options.work == kJoin) choices.push_back(nullptr);
  if (choices.empty()) throw InvalidArgument("there is no work '" + options.work + "'");
  const int trials = options.trials > 0 ? options.trials : static_cast<int>(choices.size());
  std::printf("seed %llu, %d trials\n", static_cast<unsigned long long>(options.seed), trials);

  int failures = 0;
  const Leftovers before;
  for (int number = 0; number < trials; ++number) {
    Trial trial;
    trial.work = choices[static_cast<std::size_t>(number) % choices.size()];
    trial.ranks = options.ranks > 0 ? options.ranks : 2 + below(kMostRanks - 1);
    trial.victim = below(static_cast<std::uint64_t>(trial.ranks));
    trial.calls = 1 + random() % 30;
    trial.spins = below(50'000);
    std::printf("%3d %-24.*s rank %d of %d, call %llu + %d: ", number,
                static_cast<int>(trial.name().size()), trial.name().data(), trial.victim,
                trial.ranks, static_cast<unsigned long long>(trial.calls), trial.spins);
    std::fflush(stdout);
    try {
      const auto took =
          options.target == Target::kill_all
              ? strike_all(trial)
              : strike_one(trial, options.target == Target::kill_one ? SIGKILL : SIGSTOP);
      std::printf("%lld ms\n", static_cast<long long>(took.count()));
    } catch (const std::exception& error) {
      std::printf("FAILED: %s\n", error.what());
      ++failures;
    }
  }
  if (const std::string left = before.in_process(); !left.empty()) {
    std::printf("FAILED: the rig has %s\n", left.c_str());
    ++failures;
  }
  std::printf("%d of %d trials failed\n", failures, trials);
  return failures == 0 ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--signal" && (value == "kill" || value == "stop" || value == "all")) {
      options.target = value == "kill"   ? Target::kill_one
                       : value == "stop" ? Target::stop_one
                                         : Target::kill_all;
    } else if (name == "--trials") {
      options.trials = std::stoi(value);
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else if (name == "--ranks") {
      options.ranks = std::clamp(std::stoi(value), 2, kMostRanks);
    } else if (name == "--work") {
      options.work = value;
    } else {
      throw InvalidArgument("what is " + std::string(name) + " " + value + "?");
    }
  }
  return options;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  try {
    return tutti::test::run(tutti::test::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kill_rig: %s\n", error.what());
    return 2;
  }
}
