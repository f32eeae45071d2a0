// What is noted of the calls of one rank on one communicator.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/record/flight.hpp"
#include "comm/record/lateness.hpp"
#include "comm/record/recorder.hpp"
#include "comm/record/trace.hpp"

namespace tutti::record {

/** Those whose calls a rank sees: the ranks of its host. */
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  /** What they had done when the communicator failed, for the first of them that asks. */
  virtual std::optional<Flight> claim_flight() = 0;
  /** "rank 3 on node7", and why it may be late if that is known, for the first of them that asks
   * about any rank. */
  virtual std::optional<std::string> claim_late(int rank) = 0;
};

/** When a rank was in no collective, on the clock of the journals of its host. */
struct Absence {
  std::uint64_t since = 0;
  std::uint64_t until = 0;
};

/**
 * Where a rank's calls are noted, and its waits for others: always by the recorder and as lateness,
 * and in a timeline while there is one. Calls are begun and ended by whoever runs them; what they
 * wait for is told by the transport, from inside a call and on its thread.
 */
class Journal {
 public:
  Journal(Ring& ring, Neighbours& neighbours) : recorder_(ring), neighbours_(neighbours) {}
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal() = default;

  /** Now, on the clock of this journal. */
  std::uint64_t now() const { return recorder_.clock().now(); }
  const TickClock& clock() const { return recorder_.clock(); }

  /** Between the collective under way and the one before it. */
  Absence absence() const {
    const UnderWay& own = under_way_[static_cast<std::size_t>(Lane::collective)];
    return {own.ended == 0 ? own.begun : own.ended, own.begun};
  }
  /** How long that is; 0 of a moment. */
  std::chrono::nanoseconds length_of(const Absence& absence) const;
  /** How many ticks of this journal's clock a time is. */
  std::uint64_t ticks_of(std::chrono::nanoseconds time) const;

  /** From now on it is counted how long this rank waits for each of `ranks`. */
  void count_waits(int ranks) { lateness_.emplace(ranks); }
  /** For each rank, how long this one has waited for it in collectives; not while one is under way.
   * Empty before count_waits(). */
  std::vector<double> seconds_waited() const;

  /** From now on calls are in `trace`, too, which outlives the journal; null: in none. */
  void set_trace(Trace* trace) { trace_.store(trace, std::memory_order_release); }
  Trace* trace() const {
    Trace* const trace = trace_.load(std::memory_order_acquire);
    return trace != nullptr && trace->is_open() ? trace : nullptr;
  }

  Neighbours& neighbours() const { return neighbours_; }

  /** `call` begins, the next of its lane. */
  void begin(const Call& call) {
    UnderWay& own = under_way(lane_of(call.operation));
    const std::uint64_t now = this->now();
    own.entry = &recorder_.begin(call, ++own.sequence, now);
    own.begun = now;
    own.number = own.entry->number.load(std::memory_order_relaxed);
    own.way = nullptr;
    own.waited = 0;
  }
  /** The call of `lane` that is under way ends. */
  void end(Lane lane, CallState state) {
    UnderWay& own = under_way(lane);
    const bool stands = own.stands();
    CallEntry* const entry = std::exchange(own.entry, nullptr);
    const std::uint64_t now = this->now();
    own.ended = now;
    if (stands) {
      Recorder::end(*entry, state, now);
      if (Trace* trace = this->trace(); trace != nullptr) tell(*trace, *entry, own, now);
    }
    if (lane != Lane::collective || state == CallState::failed) return;
    if (!lateness_) return;
    if (const auto finding = lateness_->count(now)) judge(*finding);
  }

  /** The call of `lane` has waited for other ranks from `since` to `until`, of which `last` came
   * last. */
  void waited(Lane lane, int last, std::uint64_t since, std::uint64_t until) {
    UnderWay& own = under_way(lane);
    if (own.entry == nullptr) return;  // outside of calls, while the ranks meet
    own.waited += until - since;
    if (own.stands()) own.entry->waited.store(own.waited, std::memory_order_relaxed);
    if (lane == Lane::collective && lateness_) lateness_->add(last, until - since);
    if (Trace* trace = this->trace(); trace != nullptr) tell_wait(*trace, last, since, until);
  }
  /** How the data of the call of `lane` travel; `way` is of static storage. */
  void went(Lane lane, const char* way) { under_way(lane).way = way; }

 private:
  struct alignas(64) UnderWay {
    std::uint64_t sequence = 0;
    CallEntry* entry = nullptr;
    std::uint64_t number = 0;  ///< that it has as long as it stands
    const char* way = nullptr;
    std::uint64_t waited = 0;
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;  ///< the one before it

    /** Whether the entry is still this call's: others may have made 1024 calls meanwhile. */
    bool stands() const { return entry->number.load(std::memory_order_relaxed) == number; }
  };
  UnderWay& under_way(Lane lane) { return under_way_[static_cast<std::size_t>(lane)]; }

  static void tell(Trace& trace, const CallEntry& entry, const UnderWay& own, std::uint64_t now);
  static void tell_wait(Trace& trace, int last, std::uint64_t since, std::uint64_t now);
  /** Says in the log who costs so much, once. */
  void judge(const Lateness::Finding& finding) noexcept;

  Recorder recorder_;
  const Anchor start_ = recorder_.clock().anchor();
  Neighbours& neighbours_;
  std::array<UnderWay, kLanes> under_way_;
  std::atomic<Trace*> trace_ = nullptr;
  std::optional<Lateness> lateness_;  // once it is known how many ranks there are
  bool judged_ = false;
};

/** A call from its beginning to its end, which is a failure unless somebody says how it ended. */
class CallNote {
 public:
  /** `journal` may be null. */
  CallNote(Journal* journal, const Call& call) : journal_(journal), lane_(lane_of(call.operation)) {
    if (journal_ != nullptr) journal_->begin(call);
  }
  CallNote(const CallNote&) = delete;
  CallNote& operator=(const CallNote&) = delete;
  ~CallNote() {
    if (journal_ != nullptr) journal_->end(lane_, state_);
  }

  void ended(CallState state) { state_ = state; }

 private:
  Journal* journal_;
  Lane lane_;
  CallState state_ = CallState::failed;
};

}  // namespace tutti::record
