// The launcher's loop: signals, messages of the wrappers, output, deadlines.
#include "launch/supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/default_timeout.hpp"
#include "base/environment.hpp"
#include "base/file_descriptor.hpp"
#include "base/launcher_line.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"
#include "launch/wrapper.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

/** How long ranks wait for each other, as far as the launcher can know it. */
std::chrono::milliseconds timeout_of(const Plan& plan) {
  std::optional<std::string> text = environment("TUTTI_TIMEOUT");
  for (const Variable& variable : plan.ranks.front().environment) {
    if (variable.name == "TUTTI_TIMEOUT") text = variable.value;
  }
  return text ? parse_timeout(*text).value_or(kDefaultTimeout) : kDefaultTimeout;
}

/** "1:02". */
std::string minutes_text(SteadyClock::duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  return std::to_string(seconds / 60) + ":" + std::to_string(100 + seconds % 60).substr(1);
}

}  // namespace

Outcome Supervisor::run(const Plan& plan) {
  plan_ = &plan;
  outcome_ = {.started = SteadyClock::now(), .ends = std::vector<RankEnd>(plan.ranks.size())};
  ranks_ = std::vector<Rank>(plan.ranks.size());
  order_.emplace(ranks_.size());
  ending_ = servers_ending_ = false;
  server_lost_timer_.stop();
  stopped_timer_.stop();
  only_stopped_since_.reset();
  rank_timeout_ = timeout_of(plan);
  if (options_.timeout && !time_is_up_) time_is_up_ = outcome_.started + *options_.timeout;
  if (time_is_up_) timeout_timer_.start(*time_is_up_ - outcome_.started);
  display_.begin(plan);
  for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i].plan = &plan.ranks[i];
  if (plan.machines.empty()) {
    for (Rank& rank : ranks_) start(rank);
  } else {
    for (Rank& rank : ranks_) rank.awaited = true;
    mpi_.emplace(plan, options_);
  }
  const auto running = [&] {
    return sweep_timer_.set() ||
           std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.done(); });
  };
  while (running() || (mpi_ && mpi_->process() != 0)) step();
  if (mpi_) outcome_.said_by_mpiexec = mpi_->printed();
  mpi_.reset();
  const bool gone_on = outcome_.kind == Outcome::Kind::done && outcome_.first_failure() != nullptr;
  if (gone_on) outcome_.kind = Outcome::Kind::failed;
  timeout_timer_.stop();
  return std::move(outcome_);
}

void Supervisor::start(Rank& rank) {
  auto [control, control_end] = connected_pair();
  auto [output, output_end] = connected_pair();
  WrapperOptions wrapper = wrapper_options(rank);
  wrapper.control = control_end.get();
  wrapper.output = output_end.get();

  ProcessStart start;
  start.arguments = {own_path(), "rank"};
  for (const std::string& word : wrapper.arguments()) start.arguments.push_back(word);
  start.environment = environment_with(rank.plan->environment);
  start.inherited = {control_end.get(), output_end.get()};
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // What is typed is the launcher's; a file or a pipe is for the first rank.
  if (rank.plan->rank != 0 || ::isatty(0) == 1) start.standard[0] = nothing.get();
  rank.wrapper = start_process(start);
  rank.control = Channel(std::move(control));
  rank.output = Channel(std::move(output));
}

WrapperOptions Supervisor::wrapper_options(const Rank& rank) const {
  WrapperOptions options;
  options.show_out = display_.shows_out(rank.plan->rank);
  options.show_err = display_.shows_err();
  options.log = rank.plan->log;
  options.cpus = rank.plan->cpus;
  options.command = plan_->command;
  return options;
}

/** A wrapper has called from its machine. */
void Supervisor::welcome(Arrival arrival) {
  if (arrival.rank < 0 || arrival.rank >= static_cast<int>(ranks_.size())) return;
  Rank& rank = ranks_[static_cast<std::size_t>(arrival.rank)];
  if (!std::exchange(rank.awaited, false)) return;
  if (rank.told_to_end) {  // before it had begun
    rank.closed = true;
    return rank_ended(rank, {.code = 0, .signal = SIGTERM}, SteadyClock::now());
  }
  rank.clock_behind = arrival.clock_behind;
  rank.control = std::move(arrival.control);
  rank.output = std::move(arrival.output);
  rank.control.send(MessageType::setup, setup_text(wrapper_options(rank), rank.plan->environment));
}

/** Ranks whose wrappers will not call any more have failed; and mpiexec ends after all ranks. */
void Supervisor::step_mpi() {
  mpi_->step([this](Arrival arrival) { welcome(std::move(arrival)); });
  bool all_done = true;
  for (Rank& rank : ranks_) {
    if (rank.awaited && !mpi_->failure().empty()) {
      rank.awaited = false;
      rank.closed = true;
      end_of(rank).last_output = mpi_->failure();
      rank_ended(rank, {.code = 1, .signal = 0}, SteadyClock::now());
    }
    all_done &= rank.done();
  }
  if (all_done) mpi_->ranks_have_ended();
}

void Supervisor::step() {
  if (display_.draws_state()) display_.set_state(state_text());
  std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
  for (const Sink* const sink : {&display_.out(), &display_.err()}) {
    sources.push_back({sink->unwritten() > 0 ? sink->descriptor() : -1, POLLOUT, 0});
  }
  const std::size_t first_rank = sources.size();
  // Output that nobody reads stays where it is: in the ranks' pipes in the end.
  const bool room = !display_.full();
  for (const Rank& rank : ranks_) {
    const bool unsent = rank.control.unsent() > 0;
    sources.push_back(
        {rank.control.descriptor(), static_cast<short>(unsent ? POLLIN | POLLOUT : POLLIN), 0});
    sources.push_back({room ? rank.output.descriptor() : -1, POLLIN, 0});
  }
  const std::size_t ends = sources.size();
  sources.push_back({order_->descriptor(), POLLIN, 0});
  if (mpi_) {
    for (const int descriptor : mpi_->descriptors()) sources.push_back({descriptor, POLLIN, 0});
  }
  const Timer& display_timer = display_.timer();
  const Timer force_timer = next_force();
  ::poll(sources.data(), sources.size(),
         poll_timeout({&display_timer, &force_timer, &timeout_timer_, &server_lost_timer_,
                       &stopped_timer_, &sweep_timer_, mpi_ ? &mpi_->timer() : &sweep_timer_}));

  if (sources[ends].revents != 0) order_->look();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.control.flush();
    if (sources[first_rank + 2 * i].revents != 0) {
      const bool there = rank.control.receive(
          [&](MessageType type, std::string_view text) { take_message(rank, type, text); });
      if (!there) rank.control.close();
    }
    if (sources[first_rank + 2 * i + 1].revents != 0) {
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
  if (sources[0].revents != 0) take_signals();
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
        ::raise(SIGSTOP);
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
      } else {
        rank.progress = text;
      }
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
      end.orphaned = true;
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
  rank.closed = true;
  rank.output.close();
  display_.end_output(*rank.plan);
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
