// How a job has ended, and what is said of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/plan.hpp"
#include "launch/process/process.hpp"
#include "launch/process/timer.hpp"

namespace tutti::launch {

/** For a process to end, after others have heard that it does: its connections are closed before.
 */
inline constexpr std::chrono::seconds kCauseToEnd{1};

/** Whose failure has ended a rank, as far as is known: another's, of which it has heard, or its
 * own, of which others may have. */
enum class Cause : std::uint8_t { another, unknown, own };

/** How a rank has ended. */
struct RankEnd {
  ExitStatus status;
  SteadyClock::time_point when;
  std::size_t place = 0;      ///< among those of the same moment
  pid_t process = 0;          ///< 0: it was never started
  bool after_stop = false;    ///< once all were told to end, or it was
  bool wrapper_lost = false;  ///< it was ended because its wrapper was, or its machine is gone
  bool orphaned = false;      ///< or because the process of Open MPI was that had started it
  bool given_up = false;      ///< it was stopped, and `when` that was, and ended for it at last
  int stopped_by = 0;  ///< the signal by which it is stopped, or was when it was told to end; or 0
  Cause cause = Cause::unknown;  ///< as it had said
  std::string last_output;       ///< the end of its stderr, or else of its stdout

  /** SIGKILL or a fault has ended it: nothing that follows from another's end. */
  bool was_killed() const;
  Cause known_cause() const { return was_killed() ? Cause::own : cause; }
  bool failed() const { return !after_stop && (given_up || !status.success()); }
  /** As a shell has it, also of who is stopped: 128 + the signal. */
  int shell_code() const { return given_up ? 128 + stopped_by : status.shell_code(); }
  /** "exit code 7", or "it was stopped by SIGSTOP, and ended when nobody else was left". */
  std::string describe() const;
};

/** How a job has ended. */
struct Outcome {
  enum class Kind { done, failed, interrupted, timed_out };
  Kind kind = Kind::done;
  int signal = 0;  ///< the one that has interrupted it
  SteadyClock::time_point started;
  std::vector<RankEnd> ends;                 ///< by rank
  std::string said_by_mpiexec{};             ///< and by wrappers that could not go on
  std::optional<ExitStatus> lost_mpiexec{};  ///< how it ended, if that was what ended the job

  /** The rank that failed first, if one has. One that was killed, or that an exception of its own
   * has ended, comes before others that ended less than a second earlier: they hear of it before it
   * has ended, and end for that. Who has said that it ends for another comes after those of whom
   * nothing is known, likewise. */
  const RankEnd* first_failure() const;
  /** Of the command: of the first rank that failed, or of mpiexec, 124 after a timeout, 128 + the
   * signal that interrupted it. */
  int exit_code() const;
};

/**
 * Which rank failed first, where, when and how, the last lines of its output, and what became of
 * the others. Empty for a job that was done.
 */
std::string report_text(const Plan& plan, const Outcome& outcome);

}  // namespace tutti::launch
