// Who is to blame where ranks do not come, and how the ranks of a host fail together: one report of
// what happened, which all of them throw.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "comm/shm/group/local_group.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

constexpr WaitPolicy kListening{.nap = std::chrono::milliseconds(50), .interruptible = false};
constexpr int kListens = 6;  // looks for heartbeats of ranks under suspicion, a nap apart

// After a question to others, who know more if they answer.
constexpr std::chrono::milliseconds kListenLater{600};

constexpr const char* kCircle = "; no rank has stopped, they wait for each other";

}  // namespace

// --- Blame --------------------------------------------------------------------------------------

/**
 * Those of `awaited`, and of whom these wait for, that do not wait themselves. Ranks that wait
 * count heartbeats; those whose count stands still are stopped, or busy elsewhere. `leads_away`
 * says whether one waits on another host, where whoever waits has a deadline of its own.
 */
std::vector<int> LocalGroup::stopped_behind(const std::vector<int>& awaited, bool& leads_away) {
  std::vector<std::uint32_t> before;
  for (int peer = 0; peer < size(); ++peer) {
    before.push_back(control().slot(peer).heartbeat.load(std::memory_order_relaxed));
  }
  // A wait in another communicator may end with its own deadline while this rank listens.
  const auto columns = static_cast<std::size_t>(size()) + 1;
  std::vector<bool> waits((columns - 1) * columns);
  const auto place = [columns](int rank, int peer) {
    return static_cast<std::size_t>(rank) * columns + static_cast<std::size_t>(peer);
  };
  Waiter waiter(kListening);
  for (int listen = 0; listen < kListens; ++listen) {
    waiter.pause();
    pulse();
    idle(awaited);
    for (int peer = 0; peer < size(); ++peer) {
      for (int other = 0; other <= size(); ++other) {
        if (control().waits(peer, other).load(std::memory_order_relaxed)) {
          waits[place(peer, other)] = true;
        }
      }
    }
  }

  std::vector<int> trace = awaited;
  std::vector<int> guilty;
  leads_away = false;
  for (std::size_t i = 0; i < trace.size(); ++i) {  // trace grows
    const int suspect = trace[i];
    const RankSlot& slot = control().slot(suspect);
    const auto at = static_cast<std::size_t>(suspect);
    if (slot.heartbeat.load(std::memory_order_relaxed) == before[at]) {
      guilty.push_back(suspect);
      continue;
    }
    const auto follow = [&](int next) {
      if (next != rank_ && std::find(trace.begin(), trace.end(), next) == trace.end()) {
        trace.push_back(next);
      }
    };
    for (const auto& entry : slot.waiting_for) {
      const std::int32_t next = entry.load(std::memory_order_relaxed);
      leads_away = leads_away || next == kWaitingElsewhere;
      if (next >= 0) follow(next);
    }
    for (int next = 0; next < size(); ++next) {
      if (waits[place(suspect, next)]) follow(next);
    }
    leads_away = leads_away || waits[place(suspect, size())];
  }
  return guilty;
}

std::vector<int> LocalGroup::culprits(const std::vector<int>& awaited,
                                      const std::vector<int>& circle, std::string& reason) {
  bool leads_away = false;
  std::vector<int> guilty = stopped_behind(awaited, leads_away);
  reason = "did not answer within " + seconds_text(timeout_);
  // One that has stopped holds up what the others have for each other, too.
  if (guilty.empty() && (!circle.empty() || !leads_away)) {
    guilty = circle.empty() ? awaited : circle;
    reason += kCircle;
  }
  return guilty;
}

void LocalGroup::begin_to_ask(const std::vector<int>& awaited, Suspicion& suspicion) {
  if (suspicion.asked != awaited) suspicion.investigation = nullptr;  // some have come
  if (!suspicion.investigation && leads_outside(awaited)) {
    suspicion.asked = awaited;
    suspicion.investigation = inquire(awaited);
  }
}

std::function<void()> LocalGroup::inquire(const std::vector<int>& awaited) {
  if (investigate_) return investigate_(names_of(awaited));
  Correspondent* const correspondent = OwnWaits::of_this_process().correspondent();
  const bool by_process =
      std::find(shares_process_.begin(), shares_process_.end(), true) == shares_process_.end();
  if (correspondent == nullptr || !by_process) return {};
  Acquaintance acquaintance;
  for (int peer = 0; peer < size(); ++peer) {
    acquaintance.members.push_back(control().slot(peer).process_number);
  }
  acquaintance.heartbeat = [this](int peer) { return heartbeat_of(peer); };
  return [this, find_out = correspondent->investigate(acquaintance, awaited, timeout_)] {
    if (const auto loss = find_out()) lose(loss->ranks, loss->reason);
  };
}

void LocalGroup::accuse(const std::vector<int>& awaited, Suspicion& suspicion,
                        const std::function<bool()>& done) {
  if (done()) return;
  const std::vector<int> circle = suspicion.circle.ranks();
  if (circle.empty() && suspicion.investigation) {
    suspicion.investigation();
    if (investigate_) return;  // which knows of more than heartbeats tell
    if (!suspicion.listen) suspicion.listen.emplace(kListenLater);
    if (!suspicion.listen->expired()) return;
    suspicion.listen.reset();
  }
  std::string reason;
  const std::vector<int> guilty = culprits(awaited, circle, reason);
  if (!guilty.empty() && !done()) lose(guilty, reason);
}

Participants LocalGroup::participants_of(std::vector<int> ranks) {
  struct Absence {
    std::vector<int> awaited;
    Suspicion suspicion;
  };
  const auto absence = std::make_shared<Absence>();
  const RecycledVector<int> names = names_of(ranks);
  Participants participants{{names.begin(), names.end()}, {}, {}, on_loss_};
  participants.idle = [this, absence, ranks = std::move(ranks)](const std::vector<int>& missing) {
    absence->awaited.clear();
    for (const int member : missing) {
      absence->awaited.push_back(ranks[static_cast<std::size_t>(member)]);
    }
    look_after(absence->awaited, absence->suspicion);
  };
  participants.investigate = [this, absence](const std::vector<int>& /*missing*/) {
    begin_to_ask(absence->awaited, absence->suspicion);
    return [this, absence](const std::function<bool()>& have_come) {
      begin_to_ask(absence->awaited, absence->suspicion);
      accuse(absence->awaited, absence->suspicion, have_come);
      begin_to_ask(absence->awaited, absence->suspicion);
    };
  };
  participants.done = [this, absence] {
    waiting_for(Wait::collective).store(kNotWaiting, std::memory_order_relaxed);
    end_wait(Wait::collective, absence->suspicion);
  };
  return participants;
}

void LocalGroup::look_after(const std::vector<int>& awaited, Suspicion& suspicion) {
  waiting_for(Wait::collective).store(awaited.front(), std::memory_order_relaxed);
  tell_wait(Wait::collective, awaited, suspicion);
  check_failure();
  std::vector<int> ended;  // who has only left may have done its part before
  for (const int peer : awaited) {
    if (rendezvous_.watches[static_cast<std::size_t>(peer)].ended()) ended.push_back(peer);
  }
  if (!ended.empty()) lose(ended, "its process has ended", Ended::yes);
  idle(awaited);
}

// --- Failures -----------------------------------------------------------------------------------

const FailureReport& LocalGroup::failure() const {
  const std::int32_t author = control().header().failed_by.load(std::memory_order_acquire) - 1;
  return control().slot(author).failure;
}

void LocalGroup::throw_failure() const {
  part_with_others();
  const FailureReport& report = failure();
  if (report.kind == FailureReport::Kind::peer_lost && on_loss_) on_loss_();
  report.raise();
}

bool LocalGroup::names_this_rank() const {
  const auto lost = failure().rank_list();
  return std::find(lost.begin(), lost.end(), name_of(rank_)) != lost.end();
}

void LocalGroup::lose(const std::vector<int>& ranks, const std::string& reason, Ended ended) {
  show_lost(names_of(ranks), reason, ended);
  part_with_others();
  throw_failure();  // what all ranks throw, which may be an earlier failure
}

Herald LocalGroup::show_lost(std::span<const int> names, std::string_view reason,
                             Ended ended) noexcept {
  if (on_loss_) on_loss_();
  return show([&](FailureReport& report) { report.set_lost(names, reason, ended); });
}

Herald LocalGroup::show_mismatch(std::string_view text, Witnesses witnesses) noexcept {
  return show([&](FailureReport& report) { report.set_mismatch(text, witnesses); });
}

template <class Write>
Herald LocalGroup::show(const Write& write) noexcept {
  auto& failed_by = control().header().failed_by;
  const std::lock_guard lock(failing_);
  if (!has_failed()) {
    write(own().failure);
    std::int32_t nobody = 0;
    failed_by.compare_exchange_strong(nobody, rank_ + 1);
    // Before anything that the caller writes from now on: see check_reads().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_all();
  }
  if (failed_by.load(std::memory_order_relaxed) == rank_ + 1) return Herald::finder;
  if (!herald_) {
    auto& others = control().header().heard_of_failure;
    herald_ = others.fetch_add(1, std::memory_order_relaxed) < kStandIns ? Herald::stand_in
                                                                         : Herald::nobody;
  }
  return *herald_;
}

}  // namespace tutti::shm
