// What workers and servers of a trial do until it is over, or until something is thrown.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "ps/faults/trial.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::faults {
namespace {

/** Cuts all connections of this process, as a cable that is pulled out would. */
void cut_connections(int /*signal*/) {
  constexpr int kMostDescriptors = 256;
  for (int fd = 3; fd < kMostDescriptors; ++fd) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    if (address.ss_family == AF_INET || address.ss_family == AF_INET6) ::shutdown(fd, SHUT_RDWR);
  }
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

/** Elements that are no sums of whole pushes have been torn. */
void check_rows(const Trial& trial, const std::vector<float>& rows) {
  if (std::holds_alternative<Geo>(trial.mode)) return;  // fractions are right there
  for (const float value : rows) {
    require(std::rint(value) == value && value >= 0 && value < 1e7F,
            "a lookup has an element " + std::to_string(value));
  }
}

void work(const Trial& trial, Worker& worker, const std::string& folder, Notes& notes,
          Board& board) {
  const int table = worker.table("counter");
  std::vector<std::int64_t> own;
  std::vector<std::int64_t> all;
  for (int other = 0; other < trial.workers; ++other) {
    for (std::int64_t i = 0; i < kIds; ++i) all.push_back(counter(other, i));
  }
  for (std::int64_t i = 0; i < kIds; ++i) own.push_back(counter(worker.index(), i));
  // In sync mode gradients are divided by those who live: 1, 2 or 3.
  const std::vector<float> gradients(own.size() * kDim, trial.is_sync() ? -6.0F : -1.0F);
  std::vector<float> rows(all.size() * kDim);
  std::int64_t step = 0;
  std::int64_t before = now();
  while (!board.over) {
    notes.attempted = ++step;
    worker.push(table, own, gradients);
    worker.step();
    if (step % 3 == worker.index()) {
      worker.lookup(table, all, rows);
      check_rows(trial, rows);
    }
    if (trial.is_sync()) notes.acknowledged = step;
    if (step % 8 == 0) {
      worker.flush();
      notes.acknowledged = step;
    }
    const std::int64_t after = now();
    if (board.struck) notes.longest_step = std::max(notes.longest_step.load(), after - before);
    if (trial.saves && worker.index() == 0 && step % 64 == 0) worker.save(folder);
    before = now();
  }
  worker.stop();
  notes.acknowledged = step;
}

void serve_or_work(const Trial& trial, int process, const Meeting& meeting, Board& board) {
  Notes& notes = board.notes[static_cast<std::size_t>(process)];
  std::optional<Communicator> world;
  const auto place = [&] {
    if (trial.layout == Layout::endpoints || trial.layout == Layout::hosts) {
      return trial.is_worker(process)
                 ? Placement::worker(meeting.endpoints, process, trial.workers)
                 : Placement::server(meeting.endpoints, process - trial.workers, trial.workers);
    }
    world.emplace(process, trial.processes(), meeting.ticket);
    return trial.layout == Layout::threads ? Placement::threads(*world)
                                           : Placement::last_ranks(*world, trial.servers);
  };
  Fleet fleet(place(), options_of(trial, meeting.folder));
  world.reset();
  notes.ready = true;
  if (fleet.is_server()) {
    fleet.server().run();
    for (const int worker : fleet.server().stats().lost_workers) {
      notes.lost_ranks |= std::int64_t{1} << worker;
    }
    return;
  }
  try {
    work(trial, fleet.worker(), meeting.folder, notes, board);
  } catch (const PeerLost&) {
    notes.ended_at = now();  // where servers are threads, the fleet ends when they do
    throw;
  }
  for (const int worker : fleet.worker().lost_workers()) {
    notes.lost_ranks |= std::int64_t{1} << worker;
  }
}

}  // namespace

FleetOptions options_of(const Trial& trial, const std::string& folder) {
  FleetOptions options;
  options.tables.push_back({.name = "counter",
                            .dim = kDim,
                            .rule = Sgd{1.0F},
                            .initial = Constant{0.0F},
                            .consistent_rows = trial.consistent_rows});
  options.mode = trial.mode;
  options.timeout = kDeadline;
  options.checkpoint = folder;
  options.save_at_end = true;
  return options;
}

void live(const Trial& trial, int process, const Meeting& meeting, Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGUSR1, cut_connections);
  if (trial.layout == Layout::hosts) {
    ::setenv("TUTTI_HOST_ID", std::to_string(process + 1).c_str(), 1);
  }
  Notes& notes = board.notes[static_cast<std::size_t>(process)];
  End end = End::done;
  const auto note = [&](const char* text) {
    std::snprintf(notes.text.data(), notes.text.size(), "%s", text);
  };
  try {
    serve_or_work(trial, process, meeting, board);
  } catch (const PeerLost& error) {
    for (const int rank : error.ranks()) notes.lost_ranks |= std::int64_t{1} << rank;
    note(error.what());
    end = End::lost;
  } catch (const std::exception& error) {
    note(error.what());
    end = End::wrong;
  }
  notes.end = end;
  ::_exit(end == End::done ? 0 : end == End::lost ? 3 : 4);
}

}  // namespace tutti::ps::faults
