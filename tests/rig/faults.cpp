// Injects faults into trials of random collectives, and looks how the other ranks take them.
//
//   faults [--trials N] [--first K] [--seed S] [--jobs J] [--mpiexec PATH]   N trials, from K on
//   faults --trial K [--seed S]                                that one alone, in detail
//
// A trial (trial.hpp) is a pure function of the seed and its number. Every rank checks each result;
// every survivor must name the faulty ranks and no others, within the deadline and a second; the
// memory of survivors must stay theirs, the job must end with the right status, and nothing may be
// left (judge.cpp). A trial in which nothing was wrong but the time, while the machine kept ranks
// from running, is tried again before it counts as failed.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rig/job.hpp"
#include "rig/judge.hpp"
#include "rig/rank.hpp"
#include "rig/trial.hpp"
#include "support/options.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

constexpr int kAttempts = 3;  // of a trial in which all complaints are about a busy machine's time

constexpr const char* kHelp =
    R"(faults [OPTIONS]: injects faults into trials of random collectives

  --trials N      how many; if left out, one of each case
  --first K       the number of the first (0)
  --seed S        what is drawn (1)
  --jobs J        trials at once (2)
  --mpiexec PATH  what starts ranks under MPI (mpiexec)
  --trial K       that one alone, in detail
  --help          this text
)";

struct Options {
  bool help = false;
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t trials = cases().size();
  std::optional<std::uint64_t> trial;
  int jobs = 2;
  std::string record;  // of a rank under mpiexec
  Program program;
};

/** What a process that ran a trial says about it, through a pipe. */
struct Report {
  std::int64_t results = 0;
  double longest_wait = 0;
  bool is_doubtful = false;
  bool is_well = false;
  bool mpiexec_hung = false;
  std::array<char, 1500> text{};
};

Report report_on(const Trial& trial, const Program& program) {
  const Verdict verdict = run(trial, program);
  Report report;
  report.results = verdict.results;
  report.longest_wait = verdict.longest_wait;
  report.is_doubtful = verdict.is_doubtful;
  report.mpiexec_hung = verdict.mpiexec_hung;
  report.is_well = verdict.complaints.empty();
  std::string text;
  for (const std::string& complaint : verdict.complaints) text += complaint + "; ";
  text.copy(report.text.data(), report.text.size() - 1);
  return report;
}

/** A process that runs a trial. */
struct Running {
  std::uint64_t number = 0;
  int attempt = 1;
  pid_t pid = 0;
  FileDescriptor pipe;
};

Running start(const Options& options, std::uint64_t number, int attempt) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  FileDescriptor output(ends[1]);
  Running running{number, attempt, ::fork(), FileDescriptor(ends[0])};
  if (running.pid < 0) throw SystemError("cannot fork", errno);
  if (running.pid > 0) return running;
  Report report;
  try {
    report = report_on(make_trial(options.seed, number), options.program);
  } catch (const std::exception& error) {
    std::string_view(error.what()).copy(report.text.data(), report.text.size() - 1);
  }
  const bool said = ::write(output.get(), &report, sizeof report) == sizeof report;
  std::_Exit(said ? 0 : 1);
}

Report finish(const Running& running) {
  Report report;
  const ssize_t got = ::read(running.pipe.get(), &report, sizeof report);
  ::waitpid(running.pid, nullptr, 0);
  if (got != sizeof report) {
    report = {};
    std::string_view("the trial's own process ended").copy(report.text.data(), 100);
  }
  return report;
}

/** Trials by case and start. */
class Table {
 public:
  void note(const Trial& trial, const Report& report) {
    Cell& cell = cells_[trial.what.name][static_cast<std::size_t>(trial.start)];
    ++cell.trials;
    if (!report.is_well) ++cell.failed;
    if (report.mpiexec_hung) ++mpiexec_hung_;
    results_ += report.results;
    longest_wait_ = std::max(longest_wait_, report.longest_wait);
  }

  void note_repeat() { ++repeats_; }

  /** Prints the table; whether all is well. */
  bool print() const {
    std::printf("\n%-26s", "trials (failed)");
    for (int i = 0; i < kStarts; ++i) {
      std::printf("%12s", std::string(name_of(static_cast<Start>(i))).c_str());
    }
    Cell total;
    for (const Case& each : cases()) {
      const auto row = cells_.find(each.name);
      if (row == cells_.end()) continue;
      std::printf("\n%-26s", std::string(each.name).c_str());
      for (const Cell& cell : row->second) {
        std::printf("%12s", (std::to_string(cell.trials) +
                             (cell.failed > 0 ? " (" + std::to_string(cell.failed) + ")" : ""))
                                .c_str());
        total.trials += cell.trials;
        total.failed += cell.failed;
      }
    }
    std::printf(
        "\n\n%d of %d trials failed; %d attempts were late on a busy machine and repeated; %lld "
        "right results, longest wait %.2f s\n",
        total.failed, total.trials, repeats_, static_cast<long long>(results_), longest_wait_);
    const int bound = hangs_allowed(total.trials);
    if (mpiexec_hung_ > 0) {
      std::printf("%d times mpiexec hung although all ranks had ended%s, %d are allowed\n",
                  mpiexec_hung_, mpiexec_hung_ > bound ? ": FAILED" : "", bound);
    }
    return total.failed == 0 && mpiexec_hung_ <= bound;
  }

 private:
  struct Cell {
    int trials = 0;
    int failed = 0;
  };

  /** How often Open MPI may be forgiven that its mpiexec hangs by itself. */
  static int hangs_allowed(int trials) {
    return trials < 100 ? std::max(1, trials / 30) : trials / 50;
  }

  std::map<std::string_view, std::array<Cell, kStarts>> cells_;
  std::int64_t results_ = 0;
  int mpiexec_hung_ = 0;
  int repeats_ = 0;
  double longest_wait_ = 0;
};

int run_all(const Options& options) {
  std::printf("seed %llu, %llu trials\n", static_cast<unsigned long long>(options.seed),
              static_cast<unsigned long long>(options.trials));
  Table table;
  std::vector<Running> running;
  std::uint64_t next = options.first;
  const std::uint64_t end = options.first + options.trials;
  while (next < end || !running.empty()) {
    std::fflush(stdout);
    while (next < end && static_cast<int>(running.size()) < options.jobs) {
      running.push_back(start(options, next++, 1));
    }
    std::vector<pollfd> pipes;
    for (const Running& each : running) pipes.push_back({each.pipe.get(), POLLIN, 0});
    if (::poll(pipes.data(), pipes.size(), -1) < 0) throw SystemError("cannot poll", errno);
    for (std::size_t i = pipes.size(); i-- > 0;) {
      if (pipes[i].revents == 0) continue;
      const Running done = std::move(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      const Report report = finish(done);
      const Trial trial = make_trial(options.seed, done.number);
      if (!report.is_well && report.is_doubtful && done.attempt < kAttempts) {
        table.note_repeat();
        running.push_back(start(options, done.number, done.attempt + 1));
        continue;
      }
      table.note(trial, report);
      if (report.is_well) continue;
      std::printf("--seed %llu --trial %llu (%s, %s): %s%s\n",
                  static_cast<unsigned long long>(options.seed),
                  static_cast<unsigned long long>(done.number),
                  std::string(trial.what.name).c_str(), std::string(name_of(trial.start)).c_str(),
                  report.is_doubtful ? "on a busy machine: " : "", report.text.data());
    }
  }
  return table.print() ? 0 : 1;
}

int run_one(const Options& options) {
  const Trial trial = make_trial(options.seed, *options.trial);
  std::printf("%s", trial.describe().c_str());
  std::fflush(stdout);
  const Verdict verdict = run(trial, options.program);
  std::printf("%s%s", verdict.output.c_str(), verdict.account.c_str());
  for (const std::string& complaint : verdict.complaints) {
    std::printf("FAILED%s: %s\n", verdict.is_doubtful ? " (busy machine)" : "", complaint.c_str());
  }
  if (verdict.mpiexec_hung) std::printf("mpiexec hung although all ranks had ended\n");
  return verdict.complaints.empty() ? 0 : 1;
}

Options parse(const char* program, std::span<char* const> arguments) {
  Options options;
  options.program.path = program;
  const auto take = [&options](std::string_view name, const std::string& value) {
    if (name == "--seed") {
      options.seed = number_of<std::uint64_t>(name, value);
    } else if (name == "--trials") {
      options.trials = number_of<std::uint64_t>(name, value);
    } else if (name == "--first") {
      options.first = number_of<std::uint64_t>(name, value);
    } else if (name == "--trial") {
      options.trial = number_of<std::uint64_t>(name, value);
    } else if (name == "--jobs") {
      options.jobs = std::max(1, static_cast<int>(number_of<std::uint16_t>(name, value)));
    } else if (name == "--mpiexec") {
      options.program.mpiexec = value;
    } else if (name == "--record") {
      options.record = value;
    } else {
      return false;
    }
    return true;
  };
  options.help = !take_options(arguments, take);
  return options;
}

int be_rank(const Options& options) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) throw InvalidArgument("--record is for ranks under mpiexec");
  return live(make_trial(options.seed, options.trial.value()), std::atoi(rank),
              *map_record(options.record), std::nullopt);
}

int dispatch(const Options& options) {
  if (options.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!options.record.empty()) return be_rank(options);
  return options.trial ? run_one(options) : run_all(options);
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  try {
    return tutti::test::dispatch(tutti::test::parse(argv[0], {argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "faults: %s\n", error.what());
    return 2;
  }
}
