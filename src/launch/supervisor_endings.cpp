// When the ranks of a job are to end, and how they are ended.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <utility>

#include "launch/supervisor.hpp"

namespace tutti::launch {
namespace {

/** For a wrapper to end after its rank was killed. */
constexpr std::chrono::milliseconds kWrapperGrace{1500};
constexpr std::chrono::milliseconds kSweepInterval{20};
constexpr int kMostSweeps = 250;

}  // namespace

/** Whether a rank has failed, and the others are to end for it. */
bool Supervisor::fails_job(Rank& rank) {
  const RankEnd& end = outcome_.ends[static_cast<std::size_t>(rank.plan->rank)];
  if (!rank.ended || end.status.success() || end.after_stop) return false;
  if (!options_.keep_going || rank.plan->role == Role::server || end.process == 0) return true;
  if (!std::exchange(rank.failure_said, true)) {
    display_.say("tutti run: " + rank.plan->name() + " failed: " + end.status.describe() +
                 "; the others go on");
  }
  return false;
}

/** Looks at what has changed. */
void Supervisor::decide() {
  if (ending_) return;
  bool failed = false;
  for (Rank& rank : ranks_) failed |= fails_job(rank);
  if (failed) return end_job(Outcome::Kind::failed, SIGTERM);
  const auto has_ended = [](const Rank& rank) { return rank.ended; };
  if (mpi_ && mpi_->lost() && !std::all_of(ranks_.begin(), ranks_.end(), has_ended)) {
    outcome_.lost_mpiexec = mpi_->lost();  // ranks that go on could not meet any more
    return end_job(Outcome::Kind::failed, SIGTERM);
  }
  bool workers_done = true;
  for (const Rank& rank : ranks_) workers_done &= rank.plan->role == Role::server || rank.ended;
  if (workers_done && plan_->count(Role::server) > 0 && !std::exchange(servers_ending_, true)) {
    end_ranks(SIGTERM, true);
  }
}

void Supervisor::end_job(Outcome::Kind kind, int signal) {
  timeout_timer_.stop();
  if (std::exchange(ending_, true)) {
    if (kind != Outcome::Kind::interrupted) return;
    display_.hurry();
    return end_harder();
  }
  outcome_.kind = kind;
  if (kind != Outcome::Kind::failed) display_.hurry();
  end_ranks(signal, false);
}

void Supervisor::end_ranks(int signal, bool servers_alone) {
  for (Rank& rank : ranks_) {
    if (servers_alone && (rank.plan->role != Role::server || rank.ends_by_itself)) continue;
    if (!rank.told_to_end) rank.told_to_end = SteadyClock::now();
    rank.control.send(MessageType::signal, std::to_string(signal));
  }
  force_ = 0;
  force_timer_.start(options_.grace);
}

/** After their grace the ranks are killed, and after that the wrappers that still have some. Those
 * that only wait for who reads the output are left, unless the user does not wait for that. */
void Supervisor::end_harder() {
  if (force_++ == 0) {
    for (Rank& rank : ranks_) {
      if (rank.told_to_end) rank.control.send(MessageType::signal, std::to_string(SIGKILL));
    }
    force_timer_.start(kWrapperGrace);
    return;
  }
  force_timer_.stop();
  for (Rank& rank : ranks_) {
    if (!rank.told_to_end || rank.done() || (rank.closed && !display_.hurries())) continue;
    if (rank.wrapper != 0) ::kill(rank.wrapper, SIGKILL);
    if (!mpi_) continue;
    mpi_->kill();
    rank.control.close();
    if (rank.closed) rank.output.close();
  }
}

void Supervisor::send_all(int signal) {
  for (Rank& rank : ranks_) rank.control.send(MessageType::signal, std::to_string(signal));
}

void Supervisor::sweep() {
  std::set<pid_t> others = inherited_;
  for (const Rank& rank : ranks_) {
    if (rank.wrapper != 0) others.insert(rank.wrapper);
  }
  if (mpi_ && mpi_->process() != 0) others.insert(mpi_->process());
  const int left = signal_descendants(SIGKILL, others);
  if (left > 0 && ++sweeps_ < kMostSweeps) {
    sweep_timer_.start(kSweepInterval);
  } else {
    if (left > 0) {
      display_.say("tutti run: the kernel does not end " + std::to_string(left) +
                   " processes that ranks have left");
    }
    sweep_timer_.stop();
    sweeps_ = 0;
  }
  reap();
}

}  // namespace tutti::launch
