// Keeps the list of a process' communicators, and what a wait in one shows in the others.
#include "comm/shm/group/registry.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.hpp"
#include "base/waiter.hpp"
#include "comm/shm/group/local_group.hpp"

namespace tutti::shm {
namespace {

/** How long a process that exits waits for the others to leave, or to fail. */
constexpr std::chrono::seconds kAtExit{1};

}  // namespace

GroupRegistry& GroupRegistry::of_this_process() {
  static auto* const registry = new GroupRegistry;  // communicators of static objects may end later
  return *registry;
}

/** A thread of a process that forks must not leave the child with a lock that nobody holds. */
GroupRegistry::GroupRegistry() {
  give_block(take_block(1), 1);  // the free lists' lock is taken under this one: see WaitGraph
  ::pthread_atfork([] { of_this_process().mutex_.lock(); },
                   [] { of_this_process().mutex_.unlock(); },
                   [] { of_this_process().mutex_.unlock(); });
}

/** exit() unwinds nobody's stack, and a process that exits may last: MPI_Finalize waits for all
 * others, which would wait for this one. If they lose it now, MPI is not finalised; if they leave
 * as well, it is. */
void GroupRegistry::leave_at_exit() noexcept {
  for_each([](LocalGroup& group) {
    if (group.holds_up_mpi()) group.leave();
  });
  const WaitPolicy policy{.nap = std::chrono::milliseconds(1), .interruptible = false};
  for (Waiter waiter(policy, kAtExit); !waiter.expired(); waiter.pause()) {
    bool is_over = true;
    for_each([&](LocalGroup& group) {
      is_over = (!group.holds_up_mpi() || group.has_ended()) && is_over;
    });
    if (is_over) return;
  }
}

void GroupRegistry::add(LocalGroup* group) {
  const std::lock_guard lock(mutex_);
  // MPI is initialised by then, so this exit handler runs before the one that finalises it.
  if (group->holds_up_mpi() && !std::exchange(leaves_at_exit_, true)) {
    const int failed = std::atexit([] { of_this_process().leave_at_exit(); });
    if (failed != 0)
      log(LogLevel::warn, "too many exit handlers: exit() will not be noticed at once");
  }
  groups_.push_back(group);
}

void GroupRegistry::remove(LocalGroup* group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

/** This host's number of a rank of another communicator; -1 if that is not a member. Where a
 * process has several ranks of a communicator, they are the threads that made it. */
int LocalGroup::find(const LocalGroup& other, int rank) const {
  const RankSlot& wanted = other.control().slot(rank);
  for (int peer = 0; peer < size(); ++peer) {
    const RankSlot& slot = control().slot(peer);
    if (slot.process != wanted.process) continue;
    const bool alone = !shares_process_[static_cast<std::size_t>(peer)] &&
                       !other.shares_process_[static_cast<std::size_t>(rank)];
    if (alone || slot.thread == wanted.thread) return peer;
  }
  return -1;
}

template <class Action>
void LocalGroup::for_each_of_this_rank(const Action& action) {
  GroupRegistry::of_this_process().for_each([&](LocalGroup& group) {
    // A forked child has its parent's objects, too.
    if (group.process_ == process_ && group.find(*this, rank_) == group.rank_) action(group);
  });
}

void LocalGroup::beat() {
  for_each_of_this_rank(
      [](LocalGroup& group) { group.own().heartbeat.fetch_add(1, std::memory_order_relaxed); });
}

void LocalGroup::tell_wait(Wait kind, const std::vector<int>& awaited, Suspicion& suspicion) {
  suspicion.told = true;
  beat();
  show_wait(awaited);
  suspicion.circle.look(show_reach(kind, awaited));
  RecycledVector<ProcessNumber> processes;
  for (const int peer : awaited) processes.push_back(control().slot(peer).process_number);
  OwnWaits::of_this_process().wait_for(processes);
}

void LocalGroup::end_wait(Wait kind, const Suspicion& suspicion) noexcept {
  OwnWaits::of_this_process().forget();
  if (!suspicion.told) return;
  show_wait({});
  show_reach(kind, {});
}

void LocalGroup::pulse_elsewhere(Wait kind) {
  waiting_for(kind).store(kWaitingElsewhere, std::memory_order_relaxed);
  pulse();
  shows_outside_.store(true, std::memory_order_relaxed);
  for_each_of_this_rank([this](LocalGroup& group) {
    if (&group == this) return;
    group.control().waits(group.rank_, group.size()).store(true, std::memory_order_relaxed);
  });
}

void LocalGroup::end_elsewhere(Wait kind) noexcept {
  waiting_for(kind).store(kNotWaiting, std::memory_order_relaxed);
  if (shows_outside_.exchange(false, std::memory_order_relaxed)) show_wait({});
}

bool LocalGroup::leads_outside(const std::vector<int>& awaited) const {
  std::vector<int> trace = awaited;
  for (std::size_t i = 0; i < trace.size(); ++i) {  // trace grows
    const int suspect = trace[i];
    if (control().waits(suspect, size()).load(std::memory_order_relaxed)) return true;
    const auto follow = [&](int next) {
      if (next >= 0 && std::find(trace.begin(), trace.end(), next) == trace.end()) {
        trace.push_back(next);
      }
    };
    for (const auto& entry : control().slot(suspect).waiting_for) {
      const std::int32_t next = entry.load(std::memory_order_relaxed);
      if (next == kWaitingElsewhere) return true;
      follow(next);
    }
    for (int next = 0; next < size(); ++next) {
      if (control().waits(suspect, next).load(std::memory_order_relaxed)) follow(next);
    }
  }
  return false;
}

void LocalGroup::show_wait(const std::vector<int>& awaited) {
  for_each_of_this_rank([&](LocalGroup& group) {
    if (&group == this) return;
    bool outside = false;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      const bool waits = std::find(awaited.begin(), awaited.end(), peer) != awaited.end();
      const int there = group.find(*this, peer);
      if (there >= 0) {
        group.control().waits(group.rank_, there).store(waits, std::memory_order_relaxed);
      } else {
        outside = outside || waits;
      }
    }
    group.control().waits(group.rank_, group.size()).store(outside, std::memory_order_relaxed);
  });
}

ProcessNumber LocalGroup::reach_number(int peer) const {
  const RankSlot& slot = control().slot(peer);
  const bool shares = shares_process_[static_cast<std::size_t>(peer)];
  return slot.process_number + (shares ? static_cast<ProcessNumber>(slot.thread) : 0);
}

std::vector<int> LocalGroup::show_reach(Wait kind, const std::vector<int>& awaited) {
  const auto now = Reach::Clock::now();
  const auto is_self = [self = reach_number(rank_)](const auto& entry) {
    return entry.rank == self;
  };
  Reach::Entries entries;
  std::vector<int> leading_back;
  for (const int peer : awaited) {
    Reach::Entries beyond;
    control().slot(peer).reach.add_to(beyond, now);
    if (std::any_of(beyond.begin(), beyond.end(), is_self)) leading_back.push_back(peer);
    Reach::merge({reach_number(peer), now}, entries);
    for (const Reach::Entry& entry : beyond) Reach::merge(entry, entries);
  }
  std::erase_if(entries, is_self);
  // This rank's waits are several, if it has several threads; all show in all communicators.
  Reach::Entries all = entries;
  for_each_of_this_rank([&](LocalGroup& group) {
    if (&group == this) group.reach_[static_cast<std::size_t>(kind)] = std::move(entries);
    for (const Reach::Entries& one : group.reach_) {
      for (const Reach::Entry& entry : one) Reach::merge(entry, all);
    }
  });
  for_each_of_this_rank([&](LocalGroup& group) { group.own().reach.show(all); });
  return leading_back;
}

}  // namespace tutti::shm
