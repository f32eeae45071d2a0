// What the ranks of a host note of their calls and of each other, and what they say of a failure.
#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/system.hpp"
#include "comm/shm/group/local_group.hpp"
#include "comm/shm/memory/process.hpp"

namespace tutti::shm {

static_assert(static_cast<int>(Wait::send) == static_cast<int>(record::Lane::send));
static_assert(static_cast<int>(Wait::recv) == static_cast<int>(record::Lane::recv));

void LocalGroup::note_wait(Wait kind, int last, std::uint64_t since) {
  journal_.waited(static_cast<record::Lane>(kind), name_of(last), since, journal_.now());
}

void LocalGroup::note_wait_between(std::uint64_t call, int last, std::uint64_t since) {
  const std::uint64_t until = journal_.now();
  quickest_between_ = std::min(quickest_between_, until - since);
  show_wait_between(call, last, since + quickest_between_, until);
}

record::Absence LocalGroup::note_wait_for(std::uint64_t call, int last, std::uint64_t since,
                                          std::chrono::nanoseconds away) {
  const std::uint64_t until = journal_.now();
  const record::Absence absence{until - std::min(until - since, journal_.ticks_of(away)), until};
  show_wait_between(call, last, absence.since, absence.until);
  return absence;
}

void LocalGroup::note_wait_for(int last, std::uint64_t since, const record::Absence& absence) {
  const std::uint64_t from = std::max(since, absence.since);
  count_wait_between(last, from, std::min(journal_.now(), absence.until));
}

/** A sequence lock, whose number is the call's. */
void LocalGroup::show_wait_between(std::uint64_t call, int last, std::uint64_t since,
                                   std::uint64_t until) {
  RankSlot& slot = own();
  slot.delayed_in.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.delayed_by.store(last, std::memory_order_relaxed);
  slot.delayed_since.store(since, std::memory_order_relaxed);
  slot.delayed_until.store(until, std::memory_order_relaxed);
  slot.delayed_in.store(call, std::memory_order_release);
  count_wait_between(last, since, until);
}

void LocalGroup::share_wait_between(std::uint64_t call, int leader) {
  const RankSlot& slot = control().slot(leader);
  if (slot.delayed_in.load(std::memory_order_acquire) != call) return;
  const std::int32_t last = slot.delayed_by.load(std::memory_order_relaxed);
  const std::uint64_t since = slot.delayed_since.load(std::memory_order_relaxed);
  const std::uint64_t until = slot.delayed_until.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.delayed_in.load(std::memory_order_relaxed) != call) return;
  count_wait_between(last, since, until);
}

void LocalGroup::count_wait_between(int last, std::uint64_t since, std::uint64_t until) {
  if (since < until) journal_.waited(record::Lane::collective, last, since, until);
}

void LocalGroup::watch_states(const std::vector<int>& awaited) {
  for (const int peer : awaited) {
    if (is_stopped(control().slot(peer).process))
      seen_stopped_[static_cast<std::size_t>(peer)] = true;
  }
}

std::string LocalGroup::why_late(int peer) const {
  if (seen_stopped_[static_cast<std::size_t>(peer)]) return " (its process was stopped)";
  const std::int64_t swapped = swapped_bytes(control().slot(peer).process);
  if (swapped > 0)
    return " (" + std::to_string((swapped >> 20) + 1) + " MiB of it are swapped out)";
  return crowded_ ? " (there are more ranks than cores)" : "";
}

std::optional<std::string> LocalGroup::claim_late(int rank) {
  if (control().header().told_late.exchange(true)) return std::nullopt;
  const auto found = std::find(names_.begin(), names_.end(), rank);
  // Of another host this one knows when it came, and not which of its ranks was late.
  if (found == names_.end()) return "the host of rank " + std::to_string(rank);
  return "rank " + std::to_string(rank) + " on " + host_name() +
         why_late(static_cast<int>(found - names_.begin()));
}

std::optional<record::Flight> LocalGroup::claim_flight() {
  if (control().header().told_flight.exchange(true)) return std::nullopt;
  record::Flight flight;
  flight.host = host_name();
  flight.now = record::TickClock::monotonic();
  flight.unix_time =
      std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  const auto lost = has_failed() ? failure().rank_list() : std::span<const std::int32_t>();
  for (int peer = 0; peer < size(); ++peer) {
    const RankSlot& slot = control().slot(peer);
    record::RankFlight rank{name_of(peer), slot.process.pid, "", {}};
    if (rendezvous_.watches[static_cast<std::size_t>(peer)].ended()) {
      rank.condition = "its process has ended";
    } else if (std::find(lost.begin(), lost.end(), rank.rank) != lost.end()) {
      rank.condition = "lost";
    } else if (slot.has_left()) {
      rank.condition = "it has left";
    }
    rank.calls = record::read_calls(control().ring(peer));
    flight.ranks.push_back(std::move(rank));
  }
  return flight;
}

}  // namespace tutti::shm
