// The last calls of a rank, in memory that the ranks of a host share: they outlive the rank.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::record {

/** How far a call has come. */
enum class CallState : std::uint8_t {
  none,
  running,   ///< under way, perhaps waiting for other ranks
  launched,  ///< handed to a GPU
  done,
  failed,
};

/**
 * A call, in one cache line. Written by its rank alone, and read by any rank at any time: who reads
 * looks at `number` before and after, and leaves out what has changed.
 */
struct alignas(64) CallEntry {
  std::atomic<std::uint64_t> number;    ///< among the rank's calls, from 1; 0 while it is written
  std::atomic<std::uint64_t> sequence;  ///< among those that go in order: see Lane
  std::atomic<std::int64_t> count;
  std::atomic<std::uint64_t> begun;  ///< in ticks of the ring's clock, as the following
  std::atomic<std::uint64_t> ended;
  std::atomic<std::uint64_t> waited;  ///< for other ranks, of the time between
  std::atomic<std::int32_t> root;     ///< or the other rank of a message
  std::atomic<std::uint8_t> operation;
  std::atomic<std::uint8_t> dtype;
  std::atomic<std::uint8_t> reduction;
  std::atomic<CallState> state;
};
static_assert(sizeof(CallEntry) == 64);

/** The memory of a Recorder: zeros at first. */
struct Ring {
  static constexpr std::size_t kCalls = 1024;

  std::array<CallEntry, kCalls> calls;
  std::atomic<bool> counts_ticks;  ///< see TickClock
  /** Moments on both clocks, kept for what is older than they are: one is written each time that
   * the ring has gone round, in turns. */
  struct alignas(64) Moment {
    std::atomic<std::uint64_t> ticks;
    std::atomic<std::int64_t> nanoseconds;
  };
  std::array<Moment, 2> moments;
};

}  // namespace tutti::record
