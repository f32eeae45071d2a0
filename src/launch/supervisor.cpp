// The launcher's loop: signals, messages of the wrappers, output, deadlines.
#include "launch/supervisor.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/launcher_line.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/poll_set.hpp"

namespace tutti::launch {
namespace {

/** "1:02". */
std::string minutes_text(SteadyClock::duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  return std::to_string(seconds / 60) + ":" + std::to_string(100 + seconds % 60).substr(1);
}

}  // namespace

void Supervisor::step() {
  if (display_.draws_state()) display_.set_state(state_text());
  PollSet sources;
  const std::size_t signals = sources.add(signals_.descriptor(), POLLIN);
  for (const Sink* const sink : {&display_.out(), &display_.err()}) {
    if (sink->unwritten() > 0) sources.add(sink->descriptor(), POLLOUT);
  }
  struct Watched {
    std::size_t control;
    std::size_t output;
  };
  std::vector<Watched> watched;  // of each rank
  // Output that nobody reads stays where it is: in the ranks' pipes in the end.
  const bool room = !display_.full();
  for (const Rank& rank : ranks_) {
    const bool unsent = rank.control.unsent() > 0;
    const auto control = sources.add(rank.control.descriptor(), unsent ? POLLIN | POLLOUT : POLLIN);
    watched.push_back({control, sources.add(room ? rank.output.descriptor() : -1, POLLIN)});
  }
  const std::size_t ends = sources.add(order_->descriptor(), POLLIN);
  if (mpi_) {
    for (const int descriptor : mpi_->descriptors()) sources.add(descriptor, POLLIN);
  }
  const Timer& display_timer = display_.timer();
  const Timer force_timer = next_force();
  sources.wait(poll_timeout({&display_timer, &force_timer, &timeout_timer_, &server_lost_timer_,
                             &stopped_timer_, &cause_timer_, &sweep_timer_,
                             mpi_ ? &mpi_->timer() : &sweep_timer_}));

  if (sources.happened(ends)) order_->look();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.control.flush();
    if (sources.happened(watched[i].control)) {
      const bool there = rank.control.receive(
          [&](MessageType type, std::string_view text) { take_message(rank, type, text); });
      if (!there) rank.control.close();
    }
    if (sources.happened(watched[i].output)) {
      const bool there = rank.output.receive([&](MessageType type, std::string_view text) {
        display_.output(*rank.plan, type, text);
      });
      if (!there) {
        const bool cut = rank.output.cut() && !rank.killed && !display_.hurries();
        rank.output.close();
        display_.end_output(*rank.plan);
        if (cut) {
          display_.say("tutti run: the connection that brings the output of " + rank.plan->name() +
                       " is lost: the end of it may be in its log alone");
        }
      }
    }
  }
  if (sources.happened(signals)) take_signals();
  if (mpi_) step_mpi();  // also when what has just been reaped was mpiexec
  for (Rank& rank : ranks_) {
    const bool lost = !rank.awaited && rank.wrapper == 0 && !rank.control.open() && !rank.closed;
    if (lost) wrapper_lost(rank);
  }
  decide();
  watch_stopped();
  if (display_.timer().due()) display_.refresh();
  display_.flush();
  if (timeout_timer_.due()) end_job(Outcome::Kind::timed_out, SIGTERM);
  for (Rank& rank : ranks_) {
    if (rank.force_timer.due()) end_harder(rank);
  }
  if (sweep_timer_.due()) sweep();
}

void Supervisor::take_signals() {
  while (const int signal = signals_.next()) {
    switch (signal) {
      case SIGCHLD:
        reap();
        break;
      case SIGTSTP:
        send_all(SIGSTOP);
        stop_this_process();
        go_on();  // also if it has not been stopped
        break;
      case SIGCONT:
        go_on();
        break;
      case SIGUSR1:
      case SIGUSR2:
        send_all(signal);
        break;
      default:
        if (outcome_.kind == Outcome::Kind::interrupted) {
          hurry();  // asked twice
        } else {
          outcome_.signal = signal;
          end_job(Outcome::Kind::interrupted, signal);
        }
    }
  }
}

/** All ranks go on, as a rule after a Ctrl-Z: what time has passed they have not had. That they
 * were stopped, wrappers may still have to say. */
void Supervisor::go_on() {
  if (server_lost_timer_.set()) server_lost_timer_.start(rank_timeout_);
  for (Rank& rank : ranks_) {
    RankEnd& end = end_of(rank);
    if (rank.control.open() && end.process != 0) ++rank.going_on;
    if (!rank.told_to_end && !rank.given_up) end.stopped_by = 0;
  }
  send_all(SIGCONT);
}

void Supervisor::reap() {
  for (;;) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, WNOHANG);
    if (child <= 0) return;
    inherited_.erase(child);
    if (mpi_ && mpi_->take_end(child, ExitStatus::from_wait(status))) continue;
    for (Rank& rank : ranks_) {
      if (rank.wrapper != child) continue;
      rank.wrapper = 0;
      rank.wrapper_status = ExitStatus::from_wait(status);
    }
  }
}

void Supervisor::take_message(Rank& rank, MessageType type, std::string_view text) {
  RankEnd& end = end_of(rank);
  switch (type) {
    case MessageType::started:
      end.process = parse_number<pid_t>(text).value_or(0);
      if (!mpi_) order_->watch(static_cast<std::size_t>(rank.plan->rank), end.process);
      break;
    case MessageType::stopped:
      if (rank.going_on > 0 || rank.given_up) break;
      rank.stop_said = false;
      end.stopped_by = parse_number<int>(text).value_or(SIGSTOP);
      rank.stopped_at = SteadyClock::now();
      break;
    case MessageType::continued:
      if (!rank.told_to_end && !rank.given_up) end.stopped_by = 0;
      break;
    case MessageType::passed_on:
      if (rank.going_on > 0) --rank.going_on;  // else it had not said yet that it is there
      break;
    case MessageType::progress:
      if (text == kEndsByItself) {
        rank.ends_by_itself = true;
      } else if (text == kIsFailing) {
        end.cause = Cause::own;
      } else if (text == kEndsForAnother) {
        end.cause = Cause::another;
      } else if (!rank.ended) {
        rank.progress = text;
      }
      break;
    case MessageType::goes_on:
      if (ending_ || rank.killed || rank.given_up) break;
      rank.told_to_end.reset();
      rank.force_timer.stop();
      order_ends();
      break;
    case MessageType::log_failed:
      if (std::exchange(log_failure_said_, true)) break;
      display_.say("tutti run: " + rank.plan->log.string() + ": " + std::string(text) +
                   "; the job goes on, but what cannot be written is missing in its logs");
      break;
    case MessageType::ended: {
      const auto fields = split_list(text, ' ');
      const auto number = [&](std::size_t i) {
        return i < fields.size() ? parse_number<std::int64_t>(fields[i]).value_or(0) : 0;
      };
      rank_ended(rank, {.code = static_cast<int>(number(0)), .signal = static_cast<int>(number(1))},
                 SteadyClock::time_point(SteadyClock::duration(number(2))) + rank.clock_behind);
      break;
    }
    case MessageType::orphaned:
      if (!rank.ended) end.orphaned = true;
      break;
    case MessageType::closed:
      end.last_output = text;
      rank.closed = true;
      break;
    default:
      break;
  }
}

void Supervisor::rank_ended(Rank& rank, ExitStatus status, SteadyClock::time_point when) {
  RankEnd& end = end_of(rank);
  end.status = status;
  end.given_up = rank.given_up;
  rank.ended = true;
  rank.progress.clear();
  // The clock of another machine is known but for what its greeting took.
  const SteadyClock::time_point moment = std::min(when, SteadyClock::now());
  order_->ended(static_cast<std::size_t>(rank.plan->rank), moment);
  order_ends();
}

/** Who has ended before the last one of whom that is known may have ended earlier than was said. */
void Supervisor::order_ends() {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) continue;
    RankEnd& end = end_of(rank);
    const auto index = static_cast<std::size_t>(rank.plan->rank);
    end.when = end.given_up ? rank.stopped_at : order_->moment(index);
    end.place = order_->place(index);
    end.after_stop = rank.told_to_end && end.when >= *rank.told_to_end;
    if (!end.after_stop && !end.given_up) end.stopped_by = 0;
  }
}

void Supervisor::wrapper_lost(Rank& rank) {
  rank.closed = true;  // but what it has sent of the rank's output is still to be read
  if (!rank.ended) {
    const ExitStatus lost{.code = 0, .signal = SIGKILL};
    rank_ended(rank, mpi_ ? lost : rank.wrapper_status, SteadyClock::now());
    end_of(rank).wrapper_lost = true;
  }
  // The rank's process ends with it; what descends from that is ours now.
  sweep();
}

std::string Supervisor::state_text() const {
  std::vector<std::string> parts;
  for (const Role role : {Role::server, Role::worker, Role::heter_worker}) {
    int running = 0;
    for (const Rank& rank : ranks_) running += rank.plan->role == role && !rank.ended ? 1 : 0;
    const int all = plan_->count(role);
    if (all == 0) continue;
    parts.push_back((running == all ? "" : std::to_string(running) + " of ") + std::to_string(all) +
                    " " + name_of(role) + (all == 1 ? "" : "s"));
  }
  std::string text = "tutti run: " + join_list(parts, ", ") + (ending_ ? " ending" : " running");
  for (const Rank& rank : ranks_) {
    if (outcome_.ends[static_cast<std::size_t>(rank.plan->rank)].stopped_by != 0)
      text += "; " + rank.plan->name() + " is stopped";
  }
  for (const Rank& rank : ranks_) {
    if (rank.progress.empty()) continue;
    text += "; " + rank.plan->name() + ": " + rank.progress;
    break;
  }
  return text + "; " + minutes_text(SteadyClock::now() - outcome_.started);
}

}  // namespace tutti::launch
