// Ranks on several machines: mpiexec starts their wrappers, which call the launcher.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/meeting.hpp"
#include "launch/options.hpp"
#include "launch/plan.hpp"
#include "launch/process/text_lines.hpp"
#include "launch/process/timer.hpp"

namespace tutti::launch {

/** The words of mpiexec's command line for a plan, with the hostfile and the launcher's addresses.
 */
std::vector<std::string> mpiexec_command(const Plan& plan, const RunOptions& options,
                                         const std::string& hostfile, const std::string& addresses);

/** A wrapper that has come, with both of its connections. */
struct Arrival {
  int rank = 0;
  std::string clock;  ///< whose
  Channel control;
  Channel output;
  SteadyClock::duration clock_behind{};  ///< its clock, behind ours
};

/** A running mpiexec, which ends with this process, and its wrappers until they have called. */
class MpiJob {
 public:
  /** Starts it. Throws Error if that cannot be. */
  MpiJob(const Plan& plan, const RunOptions& options);
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;
  ~MpiJob() = default;

  /** Descriptors to wait for. */
  std::vector<int> descriptors() const;
  /** When step() has something to do even if none of them is ready. */
  const Timer& timer() const { return timer_; }
  /** Takes calls, and what mpiexec prints. Never blocks. Once all wrappers have come it hands them
   * over. */
  void step(const std::function<void(Arrival)>& take);
  /** Why wrappers that have not called will not, or may not; empty as long as they may. Those that
   * have then go. */
  const std::string& failure() const { return failure_; }
  /** Whether it is this rank's wrapper that has not called, or was refused. */
  bool lacks(int rank) const;

  /** The end of what mpiexec has printed, and wrappers that could not go on. */
  std::string_view printed() const { return printed_.text(); }
  /** How mpiexec has failed after all wrappers had come, if it has. */
  const std::optional<ExitStatus>& lost() const { return lost_; }
  /** Notes that mpiexec has ended, if `child` is that. */
  bool take_end(pid_t child, ExitStatus status);
  /** Of mpiexec; 0 once it has ended. */
  pid_t process() const { return process_; }
  /** All ranks have ended: mpiexec has a moment to do so as well. */
  void ranks_have_ended();
  /** Kills mpiexec, whose daemons then end the wrappers. No wrapper is welcome any more. */
  void kill();

 private:
  void take_call(const Caller& caller, Channel channel);
  std::string missing_text() const;
  void read_output();
  void fail(const std::string& reason);

  Meeting meeting_;
  FileDescriptor printed_end_;
  Tail printed_;
  std::vector<std::string> hosts_;   // of each rank
  std::map<int, Arrival> arrivals_;  // by rank, as long as others are on their way
  std::vector<bool> arrived_;        // which ranks' wrappers have, with both connections
  std::optional<int> refused_;       // whose wrapper was
  // How far each machine's clock is behind ours, at most: a greeting may be read late.
  std::map<std::string, SteadyClock::duration> clocks_behind_;
  bool all_came_ = false;
  bool complained_ = false;  // one of the wrappers has, and will not call
  bool ranks_ended_ = false;
  bool killed_ = false;  // by this process
  std::optional<ExitStatus> lost_;
  Timer timer_;  // for all wrappers to call, and then for mpiexec to end
  std::string failure_;
  pid_t process_ = 0;
};

}  // namespace tutti::launch
