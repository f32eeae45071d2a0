// The flight recorder of a rank: notes every call where it is, whatever becomes of the rank.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/record/clock.hpp"
#include "comm/record/ring.hpp"
#include "tutti/call.hpp"

namespace tutti::record {

/** Calls of one lane run one after the other, in the order in which they were made, and are counted
 * on their own: collectives, which have the same numbers on all ranks; sends; receives. */
enum class Lane : std::uint8_t { collective, send, recv };
inline constexpr std::size_t kLanes = 3;

constexpr Lane lane_of(Operation operation) {
  if (operation == Operation::send) return Lane::send;
  // No recv runs beside an exchange.
  const bool receives = operation == Operation::recv || operation == Operation::exchange;
  return receives ? Lane::recv : Lane::collective;
}

/**
 * Notes the last calls of one rank in its Ring: a cache line and two looks at a clock a call. Calls
 * of different lanes may be noted by several threads.
 */
class Recorder {
 public:
  /** `ring` outlives the recorder, and is zeros. */
  explicit Recorder(Ring& ring);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() = default;

  /** Notes that `call`, the call number `sequence` of its lane, is under way. */
  CallEntry& begin(const Call& call, std::uint64_t sequence, std::uint64_t now) {
    const std::uint64_t number = made_.fetch_add(1, std::memory_order_relaxed);
    if (number % Ring::kCalls == 0) note_moment(number / Ring::kCalls);
    CallEntry& entry = ring_.calls[number % Ring::kCalls];
    constexpr auto kRelaxed = std::memory_order_relaxed;
    entry.number.store(0, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.sequence.store(sequence, kRelaxed);
    entry.count.store(call.count, kRelaxed);
    entry.begun.store(now, kRelaxed);
    entry.ended.store(0, kRelaxed);
    entry.waited.store(0, kRelaxed);
    entry.root.store(call.peer < 0 ? call.root : call.peer, kRelaxed);
    entry.operation.store(static_cast<std::uint8_t>(call.operation), kRelaxed);
    entry.dtype.store(static_cast<std::uint8_t>(call.dtype), kRelaxed);
    entry.reduction.store(static_cast<std::uint8_t>(call.reduction.kind), kRelaxed);
    entry.state.store(CallState::running, kRelaxed);
    entry.number.store(number + 1, std::memory_order_release);
    return entry;
  }
  /** Notes that it is under way no longer, and how it came out: as done, launched or failed. */
  static void end(CallEntry& entry, CallState state, std::uint64_t now) {
    entry.ended.store(now, std::memory_order_relaxed);
    entry.state.store(state, std::memory_order_relaxed);
  }

  const TickClock& clock() const { return clock_; }

 private:
  void note_moment(std::uint64_t round);

  TickClock clock_;
  Ring& ring_;
  std::atomic<std::uint64_t> made_ = 0;
};

}  // namespace tutti::record
