// When the ranks of a job are to end, and how they are ended.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "launch/supervisor.hpp"

namespace tutti::launch {
namespace {

/** For a wrapper to end after its rank was killed. */
constexpr std::chrono::milliseconds kWrapperGrace{1500};
constexpr std::chrono::milliseconds kSweepInterval{20};
constexpr int kMostSweeps = 250;

}  // namespace

RankEnd& Supervisor::end_of(const Rank& rank) {
  return outcome_.ends[static_cast<std::size_t>(rank.plan->rank)];
}

/** Whether a rank has failed, and the others are to end for it. */
bool Supervisor::fails_job(Rank& rank) {
  const RankEnd& end = end_of(rank);
  if (!rank.ended || !end.failed()) return false;
  if (!options_.keep_going || end.process == 0) return true;
  if (rank.plan->role == Role::server) return !workers_may_end(rank);
  if (!std::exchange(rank.failure_said, true) && !end.given_up) {
    display_.say("tutti run: " + rank.plan->name() + " failed: " + end.status.describe() +
                 "; the others go on");
  }
  return false;
}

/** Whether workers have time left, since a server has failed that was one of tutti's: they hear of
 * it, say so, and end. */
bool Supervisor::workers_may_end(Rank& server) {
  const bool some_run = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.plan->role != Role::server && !rank.ended;
  });
  if (!server.ends_by_itself || !some_run || server_lost_timer_.due()) return false;
  if (!server_lost_timer_.set()) server_lost_timer_.start(rank_timeout_);
  if (!std::exchange(server.failure_said, true)) {
    display_.say("tutti run: " + server.plan->name() +
                 " failed: " + end_of(server).status.describe() + "; workers have " +
                 seconds_text(rank_timeout_) + " to say so and end");
  }
  return true;
}

/** Whether a rank is about to end of whose failure others have heard, or may be, as all that have
 * failed have ended for another: it has a little time, so that it, and not one that has ended for
 * it, is named, and gives the exit code. */
bool Supervisor::waits_for_cause() {
  const bool is_unknown = std::none_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    const RankEnd& end = end_of(rank);
    return rank.ended && end.failed() && end.known_cause() != Cause::another;
  });
  const auto may_be = [&](const Rank& rank) {
    return !rank.ended && (is_unknown || end_of(rank).cause == Cause::own);
  };
  if (std::none_of(ranks_.begin(), ranks_.end(), may_be) || cause_timer_.due()) return false;
  if (!cause_timer_.set()) cause_timer_.start(kCauseToEnd);
  return true;
}

/** Looks at what has changed. */
void Supervisor::decide() {
  if (ending_) return;
  bool failed = false;
  for (Rank& rank : ranks_) failed |= fails_job(rank);
  if (failed && waits_for_cause()) return;
  if (failed) return end_job(Outcome::Kind::failed, SIGTERM);
  const auto has_ended = [](const Rank& rank) { return rank.ended; };
  if (mpi_ && mpi_->lost() && !std::all_of(ranks_.begin(), ranks_.end(), has_ended)) {
    outcome_.lost_mpiexec = mpi_->lost();  // ranks that go on could not meet any more
    return end_job(Outcome::Kind::failed, SIGTERM);
  }
  bool workers_done = true;
  for (const Rank& rank : ranks_) workers_done &= rank.plan->role == Role::server || rank.ended;
  if (workers_done && plan_->count(Role::server) > 0 && !std::exchange(servers_ending_, true)) {
    end_servers();
  }
}

/** Ranks that are stopped, and that nobody would ever end: workers with --keep_going, when all
 * others have ended; servers that end by themselves, when all workers have. */
std::vector<Supervisor::Rank*> Supervisor::left_stopped() {
  std::vector<Rank*> workers;
  std::vector<Rank*> servers;
  bool one_has_ended = false;
  bool one_runs = false;
  for (Rank& rank : ranks_) {
    const bool stopped = !rank.ended && end_of(rank).stopped_by != 0;
    if (rank.plan->role == Role::server) {
      if (stopped && rank.ends_by_itself) servers.push_back(&rank);
      continue;
    }
    one_has_ended |= rank.ended;
    one_runs |= !rank.ended && !stopped;
    if (stopped) workers.push_back(&rank);
  }
  if (ending_ || !one_has_ended || one_runs) return {};
  if (!workers.empty()) return options_.keep_going ? workers : std::vector<Rank*>();
  return servers;
}

/** Gives up who is stopped, and keeps all others waiting, after one timeout. */
void Supervisor::watch_stopped() {
  stopped_timer_.stop();
  const std::vector<Rank*> left = left_stopped();
  const SteadyClock::time_point now = SteadyClock::now();
  if (left.empty()) return only_stopped_since_.reset();
  const bool servers = left.front()->plan->role == Role::server;
  if (std::exchange(only_servers_, servers) != servers) only_stopped_since_.reset();
  if (!only_stopped_since_) only_stopped_since_ = now;
  for (Rank* const rank : left) {
    if (rank->given_up) continue;
    const auto due =
        std::max(*only_stopped_since_ + options_.grace, rank->stopped_at + rank_timeout_);
    if (now >= due) {
      rank->given_up = true;
      tell_to_end(*rank, MessageType::signal, SIGTERM);
      continue;
    }
    const SteadyClock::duration wait = due - now;
    if (!stopped_timer_.set() || due < *stopped_timer_.moment()) stopped_timer_.start(wait);
    if (std::exchange(rank->stop_said, true)) continue;
    display_.say("tutti run: " + rank->plan->name() + " is stopped by " +
                 signal_name(end_of(*rank).stopped_by) +
                 ", and nobody else is left to go on; unless it does, it is ended in " +
                 seconds_text(std::chrono::ceil<std::chrono::milliseconds>(wait)));
  }
}

void Supervisor::end_job(Outcome::Kind kind, int signal) {
  timeout_timer_.stop();
  server_lost_timer_.stop();
  cause_timer_.stop();
  if (std::exchange(ending_, true)) {
    if (kind != Outcome::Kind::interrupted) return;
    return hurry();
  }
  outcome_.kind = kind;
  if (kind != Outcome::Kind::failed) display_.hurry();
  for (Rank& rank : ranks_) {
    if (!rank.told_to_end && !rank.ended) rank.told_to_end = SteadyClock::now();
    tell_to_end(rank, MessageType::signal, signal);
  }
}

/** Since no worker is left. */
void Supervisor::end_servers() {
  for (Rank& rank : ranks_) {
    if (rank.plan->role != Role::server || rank.ends_by_itself) continue;
    if (!rank.told_to_end && !rank.ended) rank.told_to_end = SteadyClock::now();
    tell_to_end(rank, MessageType::unneeded, SIGTERM);
  }
}

/** A rank that has been told before has no more time for it. */
void Supervisor::tell_to_end(Rank& rank, MessageType how, int signal) {
  rank.control.send(how, std::to_string(signal));
  if (!rank.force_timer.set()) rank.force_timer.start(options_.grace);
}

/** After its grace a rank is killed, and after that its wrapper, if it still has one. Who only
 * waits for who reads the output is left, unless the user does not wait for that. */
void Supervisor::end_harder(Rank& rank) {
  if (!std::exchange(rank.killed, true)) {
    rank.control.send(MessageType::signal, std::to_string(SIGKILL));
    return rank.force_timer.start(kWrapperGrace);
  }
  rank.force_timer.stop();
  if (rank.done() || (rank.closed && !display_.hurries())) return;
  if (rank.wrapper != 0) ::kill(rank.wrapper, SIGKILL);
  if (!mpi_) return;
  mpi_->kill();
  rank.control.close();
  if (!rank.output.open()) return;
  rank.output.close();
  display_.end_output(*rank.plan);
}

/** All were told to end, and the user does not wait for it. */
void Supervisor::hurry() {
  display_.hurry();
  for (Rank& rank : ranks_) end_harder(rank);
}

Timer Supervisor::next_force() const {
  Timer next;
  for (const Rank& rank : ranks_) {
    const bool sooner = !next.set() || rank.force_timer.moment() < next.moment();
    if (rank.force_timer.set() && sooner) next = rank.force_timer;
  }
  return next;
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
