// Starts mpiexec.
#include "launch/mpi_job.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/text.hpp"
#include "launch/machines/machine.hpp"
#include "launch/machines/mpiexec.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/process.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

constexpr std::chrono::milliseconds kOthersLimit{2000};  // once one has said that it cannot
constexpr std::chrono::milliseconds kSignalGrace{1000};  // for mpiexec to end after all ranks have

// What a wrapper prints that ends by an exception.
constexpr std::string_view kComplaint = "tutti rank: ";

const char* binding_of(Binding binding) {
  switch (binding) {
    case Binding::core:
      return "core";
    case Binding::socket:
      return "socket";
    case Binding::none:
    case Binding::automatic:  // mpiexec refuses where there are too few cores
      break;
  }
  return "none";
}

}  // namespace

std::vector<std::string> mpiexec_command(const Plan& plan, const RunOptions& options,
                                         const std::string& hostfile,
                                         const std::string& addresses) {
  std::vector<std::string> words = mpiexec_words(hostfile, binding_of(options.binding));
  words.insert(words.end(), {"-x", kSecretVariable, "-n", std::to_string(plan.ranks.size()),
                             own_path(), "rank", "--connect", addresses});
  return words;
}

MpiJob::MpiJob(const Plan& plan, const RunOptions& options) : arrived_(plan.ranks.size()) {
  for (const RankPlan& rank : plan.ranks) hosts_.push_back(rank.host);
  const FileDescriptor hostfile = write_hostfile(hosts_);
  ProcessStart start;
  start.inherited = {hostfile.get()};
  start.arguments = mpiexec_command(plan, options, name_of_inherited(hostfile),
                                    meeting_.addresses_for(plan.machines));
  start.arguments.front() = resolve_program({"mpiexec"}, false).front();
  start.environment = environment_with({{kSecretVariable, meeting_.secret(), true}});
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  printed_end_.reset(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (::isatty(0) == 1) start.standard[0] = nothing.get();
  start.standard[1] = start.standard[2] = write_end.get();
  start.own_group = true;  // Ctrl-C is the launcher's to pass on
  start.death_signal = SIGTERM;
  process_ = start_process(start);
  timer_.start(arrival_limit(hosts_.size()));
}

bool MpiJob::lacks(int rank) const {
  return refused_ ? *refused_ == rank : !arrived_[static_cast<std::size_t>(rank)];
}

/** "2 of node2, 1 of node3". */
std::string MpiJob::missing_text() const {
  std::map<std::string, int> missing;
  for (std::size_t rank = 0; rank < hosts_.size(); ++rank) missing[hosts_[rank]] += !arrived_[rank];
  std::vector<std::string> texts;
  for (const auto& [host, count] : missing) {
    if (count > 0) texts.push_back(std::to_string(count) + " of " + host);
  }
  return join_list(texts, ", ");
}

/** One of the connections of a wrapper, of which either may be the first. */
void MpiJob::take_call(const Caller& caller, Channel channel) {
  const bool known = caller.rank >= 0 && static_cast<std::size_t>(caller.rank) < hosts_.size();
  if (!failure_.empty() || !known || arrived_[static_cast<std::size_t>(caller.rank)]) return;
  if (caller.version != TUTTI_VERSION) {
    refused_ = caller.rank;
    return fail(caller.host + ": its tutti is " + caller.version +
                ", but here it is " TUTTI_VERSION);
  }
  const auto [clock, first] = clocks_behind_.try_emplace(caller.clock, caller.behind);
  if (!first) clock->second = std::min(clock->second, caller.behind);
  Arrival& arrival = arrivals_[caller.rank];
  arrival.rank = caller.rank;
  arrival.clock = caller.clock;
  (caller.control ? arrival.control : arrival.output) = std::move(channel);
  arrived_[static_cast<std::size_t>(caller.rank)] = arrival.control.open() && arrival.output.open();
}

std::vector<int> MpiJob::descriptors() const {
  std::vector<int> all = meeting_.descriptors();
  all.push_back(printed_end_.get());
  return all;
}

void MpiJob::step(const std::function<void(Arrival)>& take) {
  meeting_.step(
      [this](const Caller& caller, Channel channel) { take_call(caller, std::move(channel)); });
  const bool all = std::find(arrived_.begin(), arrived_.end(), false) == arrived_.end();
  if (all && !all_came_ && failure_.empty()) {  // now that all can start at once
    timer_.stop();
    all_came_ = true;
    meeting_.close();
    for (auto& [rank, arrival] : std::exchange(arrivals_, {})) {
      arrival.clock_behind = clocks_behind_.at(arrival.clock);
      take(std::move(arrival));
    }
  }
  read_output();
  const bool complained = !all_came_ && printed_.text().find(kComplaint) != std::string_view::npos;
  if (complained && !ranks_ended_ && !std::exchange(complained_, true)) timer_.start(kOthersLimit);
  if (!timer_.due()) return;
  if (ranks_ended_) {
    kill();
  } else {
    fail("not all wrappers have called" +
         (complained_ ? "" : " within " + seconds_text(arrival_limit(hosts_.size()))) +
         "; missing are " + missing_text() + "; mpiexec says:\n" + mpiexec_said(printed_.text()));
  }
}

void MpiJob::fail(const std::string& reason) {
  timer_.stop();
  if (failure_.empty()) failure_ = reason;
  arrivals_.clear();
}

void MpiJob::read_output() {
  std::array<char, 4096> buffer{};
  while (printed_end_) {
    const ssize_t bytes = ::read(printed_end_.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) break;
    if (bytes <= 0) {
      printed_end_.reset(-1);
      break;
    }
    printed_.append({buffer.data(), static_cast<std::size_t>(bytes)});
  }
}

bool MpiJob::take_end(pid_t child, ExitStatus status) {
  if (child != process_) return false;
  process_ = 0;
  if (all_came_ && !killed_ && !status.success()) lost_ = status;
  read_output();
  fail("mpiexec ended with " + status.describe() + ":\n" + mpiexec_said(printed_.text()));
  return true;
}

void MpiJob::ranks_have_ended() {
  if (!std::exchange(ranks_ended_, true)) timer_.start(kSignalGrace);
}

void MpiJob::kill() {
  fail("it had not started when the job was ended");
  killed_ = true;
  if (process_ != 0) ::kill(process_, SIGKILL);
}

}  // namespace tutti::launch
