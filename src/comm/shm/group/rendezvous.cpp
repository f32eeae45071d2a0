// The meeting of the ranks, step by step: create or open, claim a slot, wait for all.
#include "comm/shm/group/rendezvous.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/finally.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/shm/group/claim.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

constexpr WaitPolicy kForSegment{.nap = std::chrono::milliseconds(1)};
constexpr WaitPolicy kForRanks{.nap = std::chrono::milliseconds(100)};  // looks at the processes
constexpr std::chrono::milliseconds kForReaders{1000};  // to see that there will be none
constexpr std::chrono::milliseconds kToGiveUp{250};     // after who has given up first

[[noreturn]] void refuse_used_ticket() {
  throw InvalidArgument(
      "the UniqueId has been used already: each communicator needs one of its own "
      "(UniqueId::create)");
}

/**
 * The tickets with which this process has joined, and as which rank: its threads may be several.
 * It outlives the communicators, as a ticket is good for one only.
 */
class UsedTickets {
 public:
  static UsedTickets& of_this_process() {
    static UsedTickets tickets;
    return tickets;
  }

  bool contain(const UniqueId& id, int rank) {
    const std::lock_guard lock(mutex_);
    return used_.contains({id.bytes(), rank});
  }
  void add(const UniqueId& id, int rank) {
    const std::lock_guard lock(mutex_);
    used_.emplace(id.bytes(), rank);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::array<std::byte, UniqueId::kBytes>, int>> used_;
};

/**
 * Creates the segment and binds the ticket's address. If that fails the others are told: a segment
 * that is shorter than its header says by its length, an errno, why there is none.
 */
Segment create_segment(const std::string& name, const UniqueId& id, int size,
                       FileDescriptor& claim) {
  sweep();
  Segment segment;
  try {
    segment = Segment::create(name);
  } catch (const SystemError& error) {
    if (error.error_number() == EEXIST) refuse_used_ticket();
    throw;
  }
  NameGuard guard(name);
  std::shared_ptr<Mapping> mapping;
  try {
    std::optional<FileDescriptor> claimed = ClaimAddress(id).claim();
    if (!claimed) refuse_used_ticket();
    claim = std::move(*claimed);
    segment.reserve(0, Control::bytes_for(size));  // the others open it as soon as it has a length
    mapping = segment.map();
  } catch (const SystemError& error) {
    claim.reset(-1);
    segment.resize(error.error_number());
    std::this_thread::sleep_for(kForReaders);
    throw;
  }
  const Control control(mapping->base(), size);
  control.header().size = size;
  control.header().ticket = id.bytes();
  for (int rank = 0; rank < size; ++rank) {
    for (auto& peer : control.slot(rank).waiting_for) peer.store(kNotWaiting);
  }
  control.header().ready.store(ControlHeader::kReady, std::memory_order_release);
  guard.keep_name();
  return segment;
}

/** Looks after those that are missing. */
class Absence {
 public:
  Absence(const Participants& participants, std::chrono::milliseconds timeout)
      : participants_(participants), timeout_(timeout) {}

  /** Whether the wait is over and the missing are lost, unless have_come(). Throws PeerLost if
   * others are. */
  bool is_over(Waiter& waiter, const std::vector<int>& missing,
               const std::function<bool()>& have_come) {
    if (participants_.idle) {
      participants_.idle(missing);
    } else {
      OwnWaits::of_this_process().wait_for(std::array{kSomebody});
    }
    const bool expired = waiter.expired();
    if (!participants_.investigate) return expired;
    if (!investigation_ && waiter.waited() >= timeout_ - inquiry_lead(timeout_)) {
      investigation_ = participants_.investigate(missing);
    }
    if (expired) investigation_(have_come);
    return false;
  }

 private:
  const Participants& participants_;
  std::chrono::milliseconds timeout_;
  Participants::Investigation investigation_;
};

Segment wait_for_segment(const std::string& name, const UniqueId& id,
                         const Participants& participants, std::chrono::milliseconds timeout) {
  const ClaimAddress address(id);
  Absence absence(participants, timeout);
  std::chrono::milliseconds not_used_at{};
  for (Waiter waiter(kForSegment, timeout);;) {
    Segment segment = Segment::open(name);
    if (segment && segment.bytes() > 0) return segment;  // it grows once it is reserved
    // The name comes before the claim. So if the ticket was claimed first and the name is not
    // there afterwards, the ranks of another communicator have met already: or have given up, and
    // the one that holds the claim is about to find that out.
    const bool used = !segment && address.claimed() && !Segment::open(name);
    if (!used) not_used_at = waiter.waited();
    if (waiter.waited() - not_used_at >= std::min(kToGiveUp, timeout / 2)) refuse_used_ticket();
    waiter.pause();
    const auto has_come = [&] {
      const Segment created = Segment::open(name);
      return created && created.bytes() > 0;
    };
    if (!absence.is_over(waiter, {0}, has_come)) continue;
    throw PeerLost({participants.names.front()},
                   "did not come within " + seconds_text(timeout) + " to create the communicator");
  }
}

void check_segment(const Segment& segment, const UniqueId& id, const Participants& participants,
                   std::chrono::milliseconds timeout) {
  const int size = static_cast<int>(participants.names.size());
  const int creator = participants.names.front();
  const auto refuse_short = [&] {
    const std::int64_t bytes = segment.bytes();
    if (bytes >= static_cast<std::int64_t>(sizeof(ControlHeader))) return;
    throw SystemError("rank " + std::to_string(creator) + " could not reserve " +
                          std::to_string(Control::bytes_for(size)) + " bytes of shared memory",
                      static_cast<int>(bytes));
  };
  refuse_short();
  const auto start = segment.map();
  ControlHeader& header = Control(start->base(), size).header();
  Absence absence(participants, timeout);
  const auto is_ready = [&] { return header.ready.load(std::memory_order_acquire) != 0; };
  for (Waiter waiter(kForSegment, timeout); !is_ready();) {
    waiter.pause();
    refuse_short();  // it is reserved piece by piece
    if (!absence.is_over(waiter, {0}, is_ready)) continue;
    throw PeerLost({creator}, "stopped while creating the communicator");
  }
  if (header.ticket != id.bytes()) refuse_used_ticket();
  if (header.size != size) {
    throw InvalidArgument("world_size is " + std::to_string(size) + ", but rank " +
                          std::to_string(creator) + " came with " + std::to_string(header.size));
  }
}

/** Waits until all have joined; blames those that are missing or died. */
void wait_for_all(const Control& control, const Participants& participants,
                  std::chrono::milliseconds timeout) {
  const int size = static_cast<int>(participants.names.size());
  std::vector<ProcessWatch> watches(participants.names.size());
  std::vector<bool> watched(participants.names.size(), false);
  Flag& joined = control.header().joined;
  Absence absence(participants, timeout);
  for (Waiter waiter(kForRanks, timeout);;) {
    const std::uint32_t seen = joined.value.load(std::memory_order_acquire);
    if (seen >= static_cast<std::uint32_t>(size)) return;
    waiter.nap([&](Waiter::Duration limit) { joined.sleep(seen, limit); });
    std::vector<int> missing;
    std::vector<int> dead;
    bool is_over = false;  // for a rank whose deadline was earlier: it blames the missing ones, too
    std::vector<int> gave_up;
    for (int peer = 0; peer < size; ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      const RankSlot& slot = control.slot(peer);
      const auto state = slot.state.load(std::memory_order_acquire);
      if (state < RankSlot::kJoined) missing.push_back(peer);
      if (state >= RankSlot::kJoined && !watched[at]) {
        watches[at] = ProcessWatch(slot.process);
        watched[at] = true;
      }
      if (state == RankSlot::kLeft) {
        is_over = true;
      } else if (state == RankSlot::kGaveUp) {
        gave_up.push_back(participants.names[at]);
      } else if (watched[at] && watches[at].ended()) {
        dead.push_back(participants.names[at]);
      }
    }
    if (!gave_up.empty()) throw PeerLost(gave_up, "gave up before all ranks had met");
    if (missing.empty()) return;  // all have joined, though one may not have counted itself yet
    if (!dead.empty()) throw PeerLost(dead, "ended before all ranks had met");
    const auto have_come = [&] {
      return std::all_of(missing.begin(), missing.end(), [&](int peer) {
        return control.slot(peer).state.load(std::memory_order_acquire) >= RankSlot::kJoined;
      });
    };
    if (absence.is_over(waiter, missing, have_come) || is_over) {
      std::vector<int> names;
      for (const int peer : missing)
        names.push_back(participants.names[static_cast<std::size_t>(peer)]);
      throw PeerLost(names, "did not come within " + seconds_text(timeout));
    }
  }
}

}  // namespace

Rendezvous meet(const UniqueId& id, int rank, const Participants& participants,
                std::chrono::milliseconds timeout) {
  const Finally done([&participants] {
    OwnWaits::of_this_process().forget();
    if (participants.done) participants.done();
  });
  const int size = static_cast<int>(participants.names.size());
  const std::string name = segment_name(id, "meeting");
  if (has_met(id, rank)) refuse_used_ticket();
  Rendezvous rendezvous;
  Segment segment;
  if (rank == 0) {
    // A used ticket must not bring up a segment, not even for a moment: others would join it.
    if (ClaimAddress(id).claimed()) refuse_used_ticket();
    segment = create_segment(name, id, size, rendezvous.claim);
  } else {
    segment = wait_for_segment(name, id, participants, timeout);
  }
  check_segment(segment, id, participants, timeout);
  rendezvous.mapping = segment.map();
  rendezvous.control = Control(rendezvous.mapping->base(), size);

  RankSlot& slot = rendezvous.control.slot(rank);
  std::uint32_t free = RankSlot::kFree;
  if (!slot.state.compare_exchange_strong(free, RankSlot::kClaimed)) {
    throw InvalidArgument("local_rank is " + std::to_string(rank) +
                          ", but another process has joined with it");
  }
  slot.process = ProcessId::self();
  slot.process_number = OwnWaits::of_this_process().number();
  slot.thread = ::gettid();
  CPU_ZERO(&slot.processors);
  ::sched_getaffinity(0, sizeof(slot.processors), &slot.processors);
  slot.state.store(RankSlot::kJoined, std::memory_order_release);
  Flag& joined = rendezvous.control.header().joined;
  joined.value.fetch_add(1, std::memory_order_seq_cst);
  joined.wake();
  const auto leave = [&](RankSlot::State state) {
    slot.state.store(state, std::memory_order_release);
    joined.wake();
    segment.unlink();
  };
  try {
    wait_for_all(rendezvous.control, participants, timeout);
    for (int peer = 0; peer < size; ++peer) {
      rendezvous.watches.emplace_back(rendezvous.control.slot(peer).process);
    }
  } catch (const PeerLost&) {
    leave(RankSlot::kLeft);
    throw;
  } catch (...) {
    leave(RankSlot::kGaveUp);
    throw;
  }
  segment.unlink();
  // Nobody can come again with the ticket of a part, which no caller has.
  if (!participants.idle) UsedTickets::of_this_process().add(id, rank);
  return rendezvous;
}

bool has_met(const UniqueId& id, int rank) {
  return UsedTickets::of_this_process().contain(id, rank);
}

}  // namespace tutti::shm
