// Runs the ranks of a plan to their end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/display.hpp"
#include "launch/mpi_job.hpp"
#include "launch/options.hpp"
#include "launch/plan.hpp"
#include "launch/process/channel.hpp"
#include "launch/process/end_order.hpp"
#include "launch/process/process.hpp"
#include "launch/process/timer.hpp"
#include "launch/report.hpp"

namespace tutti::launch {

/**
 * Starts the ranks of a plan, each under its wrapper, and waits until all have ended. When one
 * fails the others are told to end: SIGTERM, a grace, SIGKILL; so are servers when all workers have
 * ended, unless they have said that they end by themselves. With --keep_going no worker's failure
 * ends the others, workers have one timeout (TUTTI_TIMEOUT) to end by themselves when such a server
 * fails, and a worker that is stopped is ended when all others have ended and it has been stopped
 * for as long; so is such a server in any case. SIGINT, SIGTERM, SIGHUP and SIGQUIT reach the
 * ranks, and end the job; a second one ends it at once. No process that descends from a rank is
 * left.
 */
class Supervisor {
 public:
  /** `signals` has those above, and SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT. */
  Supervisor(const RunOptions& options, const SignalSet& signals, Display& display)
      : options_(options), signals_(signals), display_(display), inherited_(descendants()) {
    raise_descriptor_limit();
  }

  /** Throws SystemError if a rank cannot be started, once those have ended that were. */
  Outcome run(const Plan& plan);

 private:
  struct Rank {
    const RankPlan* plan = nullptr;
    pid_t wrapper = 0;  // 0: it has ended
    ExitStatus wrapper_status;
    Channel control;
    Channel output;
    bool awaited = false;  // its wrapper is on its way
    SteadyClock::duration clock_behind{};
    std::optional<SteadyClock::time_point> told_to_end;
    int going_on = 0;                      // SIGCONTs that its wrapper has not passed on yet
    SteadyClock::time_point stopped_at{};  // if it is stopped
    bool stop_said = false;                // and that it will be given up
    bool given_up = false;                 // ended since it was stopped, and nobody else was left
    bool killed = false;                   // since it has not ended in its grace
    Timer force_timer;                     // when it is killed, or then its wrapper
    bool ended = false;                    // the rank's process
    bool closed = false;                   // and nothing of it is left
    bool failure_said = false;
    bool ends_by_itself = false;  // a server that knows when no worker is left
    std::string progress;

    bool done() const { return !awaited && wrapper == 0 && !control.open() && !output.open(); }
  };

  void start_all();
  void start(Rank& rank);
  bool running() const;
  void abandon();
  WrapperOptions wrapper_options(const Rank& rank) const;
  void welcome(Arrival arrival);
  void end_awaited();
  void step_mpi();
  void step();
  void take_signals();
  void go_on();
  void reap();
  void take_message(Rank& rank, MessageType type, std::string_view text);
  void rank_ended(Rank& rank, ExitStatus status, SteadyClock::time_point when);
  void wrapper_lost(Rank& rank);
  void order_ends();
  RankEnd& end_of(const Rank& rank);
  bool fails_job(Rank& rank);
  bool workers_may_end(Rank& server);
  bool waits_for_cause();
  void decide();
  std::vector<Rank*> left_stopped();
  void watch_stopped();
  void end_job(Outcome::Kind kind, int signal);
  void end_servers();
  void tell_to_end(Rank& rank, MessageType how, int signal);
  void end_harder(Rank& rank);
  void hurry();
  void send_all(int signal);
  void sweep();
  Timer next_force() const;
  std::string state_text() const;

  const RunOptions& options_;
  const SignalSet& signals_;
  Display& display_;
  std::set<pid_t> inherited_;  // children that this process had before: a shell's that became it
  const Plan* plan_ = nullptr;
  std::vector<Rank> ranks_;
  std::optional<EndOrder> order_;  // of their processes' ends
  Outcome outcome_;
  bool ending_ = false;          // all ranks were told to end
  bool servers_ending_ = false;  // the servers were, since nobody needs them any more
  bool log_failure_said_ = false;
  Timer timeout_timer_;
  std::optional<SteadyClock::time_point> time_is_up_;  // however often the ranks start again
  Timer server_lost_timer_;  // when workers are to have ended by themselves, since a server failed
  Timer stopped_timer_;      // when who is stopped, and keeps all others waiting, is given up
  Timer cause_timer_;        // when nobody waits any longer for who is failing, or may be
  std::optional<SteadyClock::time_point> only_stopped_since_;  // all others have ended
  bool only_servers_ = false;                                  // and workers, too
  std::chrono::milliseconds rank_timeout_{};                   // the ranks' TUTTI_TIMEOUT
  Timer sweep_timer_;
  int sweeps_ = 0;
  std::optional<MpiJob> mpi_;  // on several machines
};

}  // namespace tutti::launch
