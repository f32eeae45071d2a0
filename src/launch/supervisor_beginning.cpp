// How the ranks of a job are started, here or by mpiexec.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "base/default_timeout.hpp"
#include "base/environment.hpp"
#include "base/file_descriptor.hpp"
#include "launch/supervisor.hpp"
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

}  // namespace

Outcome Supervisor::run(const Plan& plan) {
  plan_ = &plan;
  outcome_ = {.started = SteadyClock::now(), .ends = std::vector<RankEnd>(plan.ranks.size())};
  ranks_ = std::vector<Rank>(plan.ranks.size());
  order_.emplace(ranks_.size());
  ending_ = servers_ending_ = false;
  server_lost_timer_.stop();
  stopped_timer_.stop();
  cause_timer_.stop();
  only_stopped_since_.reset();
  rank_timeout_ = timeout_of(plan);
  if (options_.timeout && !time_is_up_) time_is_up_ = outcome_.started + *options_.timeout;
  if (time_is_up_) timeout_timer_.start(*time_is_up_ - outcome_.started);
  display_.begin(plan);
  for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i].plan = &plan.ranks[i];
  try {
    start_all();
    while (running()) step();
  } catch (...) {
    abandon();
    throw;
  }
  if (mpi_) outcome_.said_by_mpiexec = mpi_->printed();
  mpi_.reset();
  const bool gone_on = outcome_.kind == Outcome::Kind::done && outcome_.first_failure() != nullptr;
  if (gone_on) outcome_.kind = Outcome::Kind::failed;
  timeout_timer_.stop();
  return std::move(outcome_);
}

void Supervisor::start_all() {
  if (plan_->machines.empty()) {
    for (Rank& rank : ranks_) start(rank);
  } else {
    for (Rank& rank : ranks_) rank.awaited = true;
    mpi_.emplace(*plan_, options_);
  }
}

bool Supervisor::running() const {
  return sweep_timer_.set() || (mpi_ && mpi_->process() != 0) ||
         std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.done(); });
}

/** Ends what was started, since something failed that is no rank's doing. */
void Supervisor::abandon() {
  for (Rank& rank : ranks_) {
    if (rank.wrapper != 0 || rank.control.open()) continue;
    rank.awaited = false;
    rank.ended = rank.closed = true;
  }
  try {
    if (mpi_) mpi_->kill();
    end_job(Outcome::Kind::failed, SIGTERM);
    while (running()) step();
  } catch (const Error&) {  // as before: wrappers end their ranks when nobody listens to them
  }
  ranks_.clear();
  mpi_.reset();
  timeout_timer_.stop();
  display_.finish();
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

/** Wrappers that have not called will not any more: their ranks have failed, and others, which have
 * not begun, end for that. */
void Supervisor::end_awaited() {
  constexpr ExitStatus kNotStarted{.code = 2, .signal = 0};
  const auto end = [&](Rank& rank, ExitStatus status) {
    rank.awaited = false;
    rank.closed = true;
    rank_ended(rank, status, SteadyClock::now());
  };
  for (Rank& rank : ranks_) {
    if (!rank.awaited || rank.told_to_end || !mpi_->lacks(rank.plan->rank)) continue;
    end_of(rank).last_output = mpi_->failure();
    end(rank, kNotStarted);
  }
  for (Rank& rank : ranks_) {
    if (!rank.awaited) continue;
    if (!rank.told_to_end) rank.told_to_end = SteadyClock::now();
    end(rank, {.code = 0, .signal = SIGTERM});
  }
}

/** mpiexec ends after all ranks. */
void Supervisor::step_mpi() {
  mpi_->step([this](Arrival arrival) { welcome(std::move(arrival)); });
  if (!mpi_->failure().empty()) end_awaited();
  const auto done = [](const Rank& rank) { return rank.done(); };
  if (std::all_of(ranks_.begin(), ranks_.end(), done)) mpi_->ranks_have_ended();
}

}  // namespace tutti::launch
