// Words for how a job has ended.
#include "launch/report.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/text.hpp"
#include "launch/machines/machine.hpp"
#include "launch/machines/mpiexec.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/text_lines.hpp"

namespace tutti::launch {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLines = 20;
constexpr std::size_t kMostNamed = 32;
constexpr int kTimeoutCode = 124;  // as of timeout(1)

std::string time_text(SteadyClock::duration time) {
  return seconds_text(std::chrono::duration_cast<milliseconds>(time));
}

/** The end of a file. */
std::string end_of(const std::filesystem::path& path) {
  constexpr off_t kBytes = 16 << 10;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const off_t length = ::lseek(file.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::min(length, kBytes)), '\0');
  const ssize_t bytes =
      ::pread(file.get(), text.data(), text.size(), length - static_cast<off_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

std::string block_of(std::string_view text) {
  std::string block;
  for (const std::string& line : last_lines(text, kLines)) block += "  | " + line + "\n";
  return block;
}

std::string mpiexec_text(const Outcome& outcome) {
  if (outcome.said_by_mpiexec.empty()) return {};
  return "  mpiexec says:\n" + block_of(mpiexec_said(outcome.said_by_mpiexec));
}

/** Those of large jobs that come first. */
std::string listed(const std::vector<std::string>& names) {
  const std::size_t count = std::min(names.size(), kMostNamed);
  const std::string more =
      count < names.size() ? " and " + std::to_string(names.size() - count) + " more" : "";
  return join_list(std::span(names).first(count), ", ") + more;
}

/** The rank that failed first. */
std::string first_failure_text(const Plan& plan, const Outcome& outcome, const RankEnd& end) {
  const RankPlan& rank = plan.ranks[static_cast<std::size_t>(&end - outcome.ends.data())];
  std::string text = "tutti run: " + rank.name() + " (rank " + std::to_string(rank.rank) + " of " +
                     std::to_string(plan.ranks.size()) + ") on " + rank.host + " failed";
  if (end.process == 0) {
    text += ": it did not start\n  " + time_text(end.when - outcome.started) +
            " after the start of the job\n" + block_of(end.last_output);
    return end.wrapper_lost ? text + mpiexec_text(outcome) : text;
  }
  if (end.wrapper_lost) text += " with the process that watched it";
  if (end.orphaned) text += " after the process of Open MPI that had started it";
  text += ": " + end.describe() + "\n  process " + std::to_string(end.process) + ", " +
          time_text(end.when - outcome.started) + " after the start\n";
  // The log of a rank on another machine is there.
  const bool own_log = plan.machines.empty() || is_this_machine(rank.host);
  const std::string lines = !end.wrapper_lost ? block_of(end.last_output)
                            : own_log         ? block_of(end_of(rank.log))
                                              : "";
  if (!rank.log.empty())
    text += "  log " + rank.log.string() + (lines.empty() ? "" : ", which ends:");
  if (rank.log.empty() && !lines.empty()) text += "  its output ended:";
  if (text.back() != '\n') text += "\n";
  text += lines;
  // A wrapper that was lost may have said why before.
  return end.wrapper_lost ? text + mpiexec_text(outcome) : text;
}

/** What became of the others. */
std::string others_text(const Plan& plan, const Outcome& outcome, const RankEnd* first) {
  std::vector<std::string> failed;
  std::vector<std::string> ended;
  std::vector<std::string> killed;
  std::vector<std::string> stopped;
  for (std::size_t i = 0; i < outcome.ends.size(); ++i) {
    const RankEnd& end = outcome.ends[i];
    const std::string name = plan.ranks[i].name();
    if (end.stopped_by != 0 && !end.given_up)
      stopped.push_back(name + " by " + signal_name(end.stopped_by));
    if (&end == first) continue;
    if (!end.after_stop) {
      if (!end.failed() || first == nullptr) continue;
      const bool later = end.when >= first->when;
      failed.push_back(name + " " +
                       time_text(later ? end.when - first->when : first->when - end.when) +
                       (later ? " later (" : " earlier (") + end.describe() + ")");
    } else if (end.status.signal == SIGKILL) {
      killed.push_back(name);
    } else {
      const bool as_told = end.status.success() || end.status.signal == SIGTERM ||
                           end.status.signal == outcome.signal;
      ended.push_back(as_told ? name : name + " (" + end.status.describe() + ")");
    }
  }
  std::string text;
  if (!stopped.empty()) text += "  had been stopped: " + listed(stopped) + "\n";
  if (!failed.empty()) text += "  failed as well: " + listed(failed) + "\n";
  if (!ended.empty()) text += "  told to end: " + listed(ended) + "\n";
  if (!killed.empty()) {
    const bool interrupted = outcome.kind == Outcome::Kind::interrupted;
    const std::string asked = signal_name(interrupted ? outcome.signal : SIGTERM);
    text += "  killed, since " + asked + " was not enough: " + listed(killed) + "\n";
  }
  return text;
}

}  // namespace

std::string RankEnd::describe() const {
  if (!given_up) return status.describe();
  return "it was stopped by " + signal_name(stopped_by) +
         ", and ended when nobody else was left to go on";
}

bool RankEnd::was_killed() const {
  constexpr std::array kSignals{SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  return !given_up && std::ranges::find(kSignals, status.signal) != kSignals.end();
}

const RankEnd* Outcome::first_failure() const {
  const auto ended_before = [](const RankEnd& one, const RankEnd& other) {
    return std::tie(one.when, one.place) < std::tie(other.when, other.place);
  };
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ends) {
    if (end.failed() && (first == nullptr || ended_before(end, *first))) first = &end;
  }
  const RankEnd* cause = first;
  for (const RankEnd& end : ends) {
    if (!end.failed() || end.when - first->when >= kCauseToEnd) continue;
    const bool is_alike = end.known_cause() == cause->known_cause();
    if (is_alike ? ended_before(end, *cause) : end.known_cause() > cause->known_cause())
      cause = &end;
  }
  return cause;
}

int Outcome::exit_code() const {
  if (kind == Kind::timed_out) return kTimeoutCode;
  if (kind == Kind::interrupted) return ExitStatus{.signal = signal}.shell_code();
  if (lost_mpiexec) return lost_mpiexec->shell_code();
  const RankEnd* const failure = first_failure();
  return failure == nullptr ? 0 : failure->shell_code();
}

std::string report_text(const Plan& plan, const Outcome& outcome) {
  const RankEnd* const first = outcome.lost_mpiexec ? nullptr : outcome.first_failure();
  std::string text;
  switch (outcome.kind) {
    case Outcome::Kind::done:
      return {};
    case Outcome::Kind::failed:
      if (!outcome.lost_mpiexec) break;
      text = "tutti run: mpiexec, which holds the ranks of several machines together, failed: " +
             outcome.lost_mpiexec->describe() + "\n" + mpiexec_text(outcome);
      break;
    case Outcome::Kind::interrupted:
      text = "tutti run: ended by " + signal_name(outcome.signal) + "\n";
      break;
    case Outcome::Kind::timed_out:
      text = "tutti run: --timeout has passed\n";
      break;
  }
  if (first != nullptr) text += first_failure_text(plan, outcome, *first);
  text += others_text(plan, outcome, first);
  text.pop_back();
  return text;
}

}  // namespace tutti::launch
