// The ranks of one host: they wait for each other, notice who is gone, and fail together.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/recycled.hpp"
#include "base/waiter.hpp"
#include "comm/own_waits.hpp"
#include "comm/reach.hpp"
#include "comm/record/flight.hpp"
#include "comm/record/journal.hpp"
#include "comm/shm/group/rendezvous.hpp"
#include "comm/shm/memory/control.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::shm {

/**
 * Synchronisation over a control segment. Ranks are numbered 0..size-1 inside the host; errors
 * name them by `names`, the ranks as the user knows them.
 *
 * Every wait spins briefly, then sleeps on a futex. From time to time it looks whether a rank that
 * it waits for has died or left, and whether somebody has declared the communicator failed. When
 * the deadline passes, it finds out whom the ranks waited for wait for themselves, so that the
 * blame falls on who really stopped.
 */
class LocalGroup final : private record::Neighbours {
 public:
  /** `participants`: the ranks as they are known while they meet, and what a loss concerns; nothing
   * if they are known as `names` then, too. */
  LocalGroup(const UniqueId& id, int rank, std::vector<int> names,
             std::chrono::milliseconds timeout, std::optional<Participants> participants = {});
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;
  /** Leaves. */
  ~LocalGroup() override;
  /** Ranks that still wait for this one get PeerLost. Does not block. Any thread may call it. */
  void leave() noexcept;
  /** After leave(): whether all others have left as well, or the communicator has failed; what a
   * loss concerns hears of that. */
  bool has_ended() noexcept;
  /** Whether MPI, to be finalised at exit, waits for its ranks: others end when the process does.
   */
  bool holds_up_mpi() const { return on_loss_ != nullptr; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(names_.size()); }
  /** The rank of this host's rank `rank` as the user knows it. */
  int name_of(int rank) const { return names_[static_cast<std::size_t>(rank)]; }
  const Control& control() const { return rendezvous_.control; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /** From now on waits offer the core to others between two looks: for ranks of which some fetch
   * messages from other hosts meanwhile. Set before the first wait. */
  void be_patient() { patient_ = true; }

  /** Called about every 50 ms by waits that sleep, with the names of the ranks waited for; what it
   * throws ends the wait. For whoever has other peers to look after. */
  using Idle = std::function<void(std::span<const int> names)>;
  void set_idle(Idle idle) { idle_ = std::move(idle); }

  /** Begins to find out why ranks with these names do not come, where they wait in other
   * communicators. What it returns is called now and then once the deadline has passed, and throws
   * PeerLost. Unless it is set the Correspondent is asked, if there is one. */
  using Investigate = std::function<std::function<void()>(std::span<const int> names)>;
  void set_investigate(Investigate investigate) { investigate_ = std::move(investigate); }

  /** Where this rank's calls are noted. */
  record::Journal& journal() { return journal_; }
  std::optional<record::Flight> claim_flight() override;
  std::optional<std::string> claim_late(int rank) override;

  /** Notes that this rank has waited since `since`, on the journal's clock, for another host to
   * come to collective `call`, counted from 1, of which `last` is the leader. What the quickest
   * such wait took is how long messages take, and does not count. */
  void note_wait_between(std::uint64_t call, int last, std::uint64_t since);
  /** The same where `last` alone was waited for, which does not wait for this rank, and had been
   * `away` from collectives: of a longer wait the end counts, which is returned. */
  record::Absence note_wait_for(std::uint64_t call, int last, std::uint64_t since,
                                std::chrono::nanoseconds away);
  /** The same for this rank alone, where it is known when that was. */
  void note_wait_for(int last, std::uint64_t since, const record::Absence& absence);
  /** Notes the wait of `leader` in `call` on a rank that has waited for that one meanwhile; none if
   * that one has gone on to the next. */
  void share_wait_between(std::uint64_t call, int leader);

  /** Reaches the next synchronisation, for the others to see. */
  void arrive();
  /** Blocks until all ranks have reached this rank's latest synchronisation. */
  void wait_for_all() { wait_for_all(&RankSlot::phase, phase_); }
  /** Both. */
  void synchronise() {
    arrive();
    wait_for_all();
  }
  /** Shows that this rank has come to collective `number`, for which the rest of its Arrival has
   * been written. */
  void come(std::uint64_t number);
  /** What ranks are waited for: that they come to a call, or that they go on with it. */
  enum class Waited { for_arrival, for_data };
  /** Blocks until all ranks have come to it. */
  void wait_for_arrivals(std::uint64_t number, Waited waited);
  /** Blocks until `flag` of every rank has reached `target`. */
  void wait_for_all(Flag RankSlot::*flag, std::uint32_t target, Waited waited = Waited::for_data);
  /** Blocks until `flag` of rank `peer` has reached `target`: since when, on the journal's clock,
   * or 0 if it has not lasted. */
  std::uint64_t wait_for(int peer, Flag RankSlot::*flag, std::uint32_t target);
  /** Blocks until done(), which depends on the mail of the ranks `awaited`. */
  void wait_for_mail(Wait kind, const std::function<bool()>& done, std::span<const int> awaited);
  /** Why ranks are lost that are gone while one waits for mail of any rank. */
  static constexpr const char* kGoneMeanwhile =
      "has ended or left, and nobody sent what a recv from any source waited for";
  /** Whose mail ends a wait: that of whichever rank, or of this one alone. */
  enum class Senders : std::uint8_t { any, only_self };
  /** Blocks until done(), which depends on the mail of `senders`. False once the deadline has
   * passed. With Senders::any throws PeerLost then if ranks have gone, and at once if all have. */
  bool wait_for_mail_of(Senders senders, Wait kind, const std::function<bool()>& done);
  /** For a wait for mail that is not this object's: throws PeerLost if one of `awaited` is gone and
   * done() does not hold all the same. */
  void look_after_mail(const std::vector<int>& awaited, const std::function<bool()>& done);
  /** The other ranks whose processes have ended, or that have left. */
  std::vector<int> those_gone() const;
  bool has_left(int peer) const { return control().slot(peer).has_left(); }

  /** Made now and then by a wait for ranks of other hosts: shows that this rank is alive and waits,
   * in all communicators of this process, and throws if this one has failed. */
  void pulse_elsewhere(Wait kind);
  /** Such a wait has ended. */
  void end_elsewhere(Wait kind) noexcept;
  /** Shows that this rank is alive, and throws if the communicator has failed. */
  void pulse();

  /** For a wait on something else, a GPU, in which all other ranks take part: pulse(), and throws
   * PeerLost if the process of one has ended. */
  void look_after_all();
  /** The same for a wait that ends without those who have left: PeerLost if the process of another
   * one has ended. */
  void look_after_present();
  /** Such a wait's deadline has passed: throws PeerLost naming the ranks that have stopped, or all
   * others if they wait for each other. Returns if the trace leads to another host. */
  void overdue();

  /** Called by this rank, on any thread, once the communicator has failed: before what it failed
   * with is thrown, and when this rank gives up. It may be called several times. */
  void set_on_failure(std::function<void()> on_failure) { on_failure_ = std::move(on_failure); }
  /** Grows while a rank waits, in whichever communicator. */
  std::uint32_t heartbeat_of(int peer) const {
    return control().slot(peer).heartbeat.load(std::memory_order_relaxed);
  }
  /** Whether all ranks are threads of this process. */
  bool is_one_process() const;

  /** How some ranks of this host meet for a communicator of their own: known by the names that
   * they have here, and looking after each other through this communicator meanwhile. */
  Participants participants_of(std::vector<int> ranks);

  /** Throws what the communicator failed with, if it has. */
  void check_failure() const {
    if (has_failed()) throw_failure();
  }
  bool has_failed() const {
    return control().header().failed_by.load(std::memory_order_acquire) != 0;
  }
  /**
   * After the last read of memory that its owner can use again: check_failure(). Whoever gave up
   * on this rank had shown the failure before it used its memory again; so what was read before a
   * look that finds none is what was meant.
   */
  void check_reads() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    check_failure();
  }
  /** At the end of an operation: throws if this very rank has been declared lost meanwhile. A loss
   * of others is left to the next operation, since this one is complete. */
  void check_own_loss() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    if (has_failed() && names_this_rank()) throw_failure();
  }
  /** Declares rank `peer` of this host lost, and throws what all ranks throw. */
  [[noreturn]] void lose(int peer, const std::string& reason, Ended ended = Ended::unknown) {
    lose(std::vector<int>{peer}, reason, ended);
  }
  /** Declares the communicator failed for all ranks of the host, unless it has failed already.
   * `names` are the lost ranks as the user knows them. */
  void fail_lost(std::span<const int> names, std::string_view reason) noexcept {
    show_lost(names, reason);
    part_with_others();
  }
  void fail_mismatch(std::string_view text) noexcept {
    show_mismatch(text);
    part_with_others();
  }

  // The two halves of these.

  /** Shows the failure to all ranks of the host, unless one is shown already; what this rank is to
   * the one that they throw. */
  Herald show_lost(std::span<const int> names, std::string_view reason,
                   Ended ended = Ended::unknown) noexcept;
  Herald show_mismatch(std::string_view text, Witnesses witnesses = Witnesses::all) noexcept;
  /** What set_on_failure() has set. */
  void part_with_others() const noexcept {
    if (on_failure_) on_failure_();
  }

 private:
  /** Blocks until arrived(signal_of(peer)) for all other ranks. */
  template <class SignalOf, class Arrived>
  void wait_for_each(const SignalOf& signal_of, const Arrived& arrived, Waited waited);
  /** Blocks until done(); whether it took more than the first looks. The time of `waiter` begins
   * when the wait does, unless it has before, and so does `since`, on the journal's clock. */
  template <class Done, class Awaited>
  bool wait(const Signal& signal, Wait kind, Waiter& waiter, std::uint64_t& since, const Done& done,
            const Awaited& awaited);
  void show_wait_between(std::uint64_t call, int last, std::uint64_t since, std::uint64_t until);
  void count_wait_between(int last, std::uint64_t since, std::uint64_t until);
  /** Notes a wait in which rank `last` of this host came last. */
  void note_wait(Wait kind, int last, std::uint64_t since);
  /** In brackets, or nothing if it is not known. */
  std::string why_late(int peer) const;
  /** Looks whether the process of a rank that is waited for is stopped. */
  void watch_states(const std::vector<int>& awaited);
  /** Shows, in all communicators of this process, that this rank is alive. */
  void beat();
  /** What a wait finds out about those that it is for. */
  struct Suspicion {
    bool told = false;  ///< the others
    CircleWatch circle;
    std::function<void()> investigation;
    std::vector<int> asked;          ///< about whom that is
    std::optional<Deadline> listen;  ///< for heartbeats, although there is one
  };
  /** A wait lasts: shows it to who may wait for this rank, in whichever communicator. */
  void tell_wait(Wait kind, const std::vector<int>& awaited, Suspicion& suspicion);
  /** It has ended. */
  void end_wait(Wait kind, const Suspicion& suspicion) noexcept;
  /** Shows in the others that this rank waits here for `awaited`, and for nobody else. */
  void show_wait(const std::vector<int>& awaited);
  /** Shows in all whom it waits for in the end; those of `awaited` who wait for it themselves. */
  std::vector<int> show_reach(Wait kind, const std::vector<int>& awaited);
  /** What `peer` is there: ranks that are threads of one process have numbers of their own. */
  ProcessNumber reach_number(int peer) const;
  /** The deadline is near: begins to ask, if the trace leads to other communicators. */
  void begin_to_ask(const std::vector<int>& awaited, Suspicion& suspicion);
  std::function<void()> inquire(const std::vector<int>& awaited);
  /** The deadline has passed: throws PeerLost if it is known of whom, and done() does not hold. */
  void accuse(const std::vector<int>& awaited, Suspicion& suspicion,
              const std::function<bool()>& done);
  template <class Action>
  void for_each_of_this_rank(const Action& action);
  int find(const LocalGroup& other, int rank) const;
  /** Whether one of `awaited`, or whom they wait for, waits in another communicator for a rank that
   * is not of this host. */
  bool leads_outside(const std::vector<int>& awaited) const;
  /** How waits pass their time. */
  const WaitPolicy& policy() const;
  /** Throws PeerLost if one of `awaited` is gone and done() does not hold all the same. */
  template <class Done>
  void look_around(const std::vector<int>& awaited, const Done& done);
  /** For waits outside of this communicator: the part of look_around() that concerns it. */
  void look_after(const std::vector<int>& awaited, Suspicion& suspicion);
  void idle(const std::vector<int>& awaited) const;
  std::vector<int> others() const;
  RecycledVector<int> names_of(const std::vector<int>& ranks) const;
  std::vector<int> stopped_behind(const std::vector<int>& awaited, bool& leads_away);
  /** Who is to blame for `awaited` not coming, and why; `circle`: those that are known to wait for
   * each other, and for this rank. Nobody, if others have to find that out. */
  std::vector<int> culprits(const std::vector<int>& awaited, const std::vector<int>& circle,
                            std::string& reason);
  [[noreturn]] void lose(const std::vector<int>& ranks, const std::string& reason,
                         Ended ended = Ended::unknown);
  /** What the communicator has failed with. */
  const FailureReport& failure() const;
  [[noreturn]] void throw_failure() const;
  bool names_this_rank() const;
  /** Shows the report that write(report) fills in, unless a failure has been shown before; what
   * this rank is to what is shown. */
  template <class Write>
  Herald show(const Write& write) noexcept;
  void wake_all() noexcept;
  bool crowded() const;
  RankSlot& own() const { return rendezvous_.control.slot(rank_); }
  std::atomic<std::int32_t>& waiting_for(Wait kind) const {
    return own().waiting_for[static_cast<std::size_t>(kind)];
  }

  std::vector<int> names_;
  std::chrono::milliseconds timeout_;
  Rendezvous rendezvous_;
  std::function<void()> on_loss_;
  int rank_;
  std::int32_t process_;  // a forked child that inherits this object is not this rank
  bool crowded_;
  bool patient_ = false;
  record::Journal journal_;
  std::uint64_t quickest_between_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::atomic<bool>> seen_stopped_;  // by rank: in a wait for it
  std::vector<bool> shares_process_;  // by rank: whether another rank is of the same process
  std::uint32_t phase_ = 0;
  Idle idle_;
  Investigate investigate_;
  std::atomic<bool> shows_outside_ = false;  // in the other communicators
  std::array<Reach::Entries, kWaitKinds>
      reach_;  // of a wait of each kind; with the registry's lock
  std::function<void()> on_failure_;
  std::array<std::vector<int>, kWaitKinds> missing_;  // of a wait of each kind: made once
  std::mutex failing_;                                // this rank's threads write one report
  std::optional<Herald> herald_;                      // of another rank's
};

}  // namespace tutti::shm
