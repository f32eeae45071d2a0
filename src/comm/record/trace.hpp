// The timeline of one rank: what it did and when, on its way into a trace file.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/fork_guard.hpp"
#include "comm/record/clock.hpp"
#include "comm/record/trace_file.hpp"

namespace tutti::record {

/** A length of time, in ticks. */
struct Ticks {
  std::int64_t count = 0;
};

/** Something said of a slice. Its name and texts are of static storage: nothing is copied. */
struct Argument {
  const char* name = nullptr;
  std::variant<std::monostate, std::int64_t, Ticks, const char*> value;
};

/** A stretch of time of one lane. Those of a lane lie one behind or one inside the other. */
struct Slice {
  static constexpr std::size_t kArguments = 8;

  const char* name = nullptr;  ///< of static storage
  std::uint64_t lane = 0;
  std::uint64_t begin = 0;  ///< in ticks
  std::uint64_t end = 0;
  std::array<Argument, kArguments> arguments;
};

/** Whose timeline it is. */
struct TracedRank {
  int number = 0;  ///< of its lanes' group, different for all ranks of the file
  std::string name;
  std::int64_t origin = 0;  ///< the rank's CLOCK_MONOTONIC when the timeline began on rank 0
};

/**
 * Collects slices, and writes them from a thread of its own, ten times a second: a rank that is
 * killed loses what is younger than that. When more come than can be written, the latest are left
 * out and counted. Safe from several threads.
 */
class Trace {
 public:
  Trace(TraceFile file, TracedRank rank);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  /** close(). */
  ~Trace();

  /** Adds a slice whose lane is the calling thread. */
  void add(Slice slice);
  /** Adds a slice of another lane. */
  void add_to(std::uint64_t lane, Slice slice);
  /** Writes what there is, without waiting for the thread's turn. */
  void flush() noexcept;
  /** Writes what there is, and takes no more. */
  void close() noexcept;

  /** Whether it takes slices. */
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  std::uint64_t now() const { return clock_.now(); }
  /** The lane of the calling thread. */
  static std::uint64_t lane();

 private:
  void run();
  /** Writes what has been collected; one thread at a time. */
  void write();
  void name_lane(std::uint64_t lane);

  const TickClock clock_;
  TraceFile file_;
  const TracedRank rank_;
  const std::uint64_t first_lane_;
  const ForkGuard fork_guard_;

  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::vector<Slice> slices_;
  std::int64_t dropped_ = 0;
  std::atomic<bool> open_ = true;

  std::mutex writing_;
  std::vector<Slice> taken_;  // what is being written
  std::string names_;         // events that name lanes
  std::vector<char> text_;
  Anchor written_;  // when the last was
  std::set<std::uint64_t> named_;
  bool failed_ = false;
  std::thread thread_;
};

/** A slice from its construction to its end, if there is a trace. */
class Span {
 public:
  Span(Trace* trace, const char* name)
      : trace_(trace != nullptr && trace->is_open() ? trace : nullptr) {
    if (trace_ == nullptr) return;
    slice_.name = name;
    slice_.begin = trace_->now();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (trace_ == nullptr) return;
    slice_.end = trace_->now();
    trace_->add(slice_);
  }

  void say(const Argument& argument) {
    if (trace_ == nullptr || said_ == Slice::kArguments) return;
    slice_.arguments[said_++] = argument;
  }

 private:
  Trace* trace_;
  Slice slice_;
  std::size_t said_ = 0;
};

}  // namespace tutti::record
