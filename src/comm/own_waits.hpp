// For whom the threads of this process wait, in whichever communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/recycled.hpp"
#include "base/time_source.hpp"
#include "comm/failure.hpp"

namespace tutti {

/** Tells processes apart, on all hosts: a random number, of at least kFirstProcessNumber. */
using ProcessNumber = std::uint64_t;
inline constexpr ProcessNumber kFirstProcessNumber = std::uint64_t{1} << 63U;
/** One whose number is not known here. */
inline constexpr ProcessNumber kSomebody = 0;

/** Those of whom somebody is waited for. */
struct Acquaintance {
  std::vector<ProcessNumber> members;  ///< of a communicator, by rank
  /** Grows while a rank of this host waits; nothing for the others. May be empty. */
  std::function<std::optional<std::uint32_t>(int rank)> heartbeat;
};

/** Who asks other processes whom they wait for, and answers for this one. */
class Correspondent {
 public:
  virtual ~Correspondent() = default;
  /** Handles questions and answers that have come in. Does not block. */
  virtual void listen() = 0;
  /** Begins to ask why `awaited` do not come, some time before a deadline of `timeout` passes. What
   * it returns is called now and then after that, and tells who is to blame once that is known. */
  virtual std::function<std::optional<Loss>()> investigate(const Acquaintance& acquaintance,
                                                           std::span<const int> awaited,
                                                           std::chrono::milliseconds timeout) = 0;
};

/**
 * The edges of the wait-for graph that begin in this process. While a rank waits in one
 * communicator, others may wait for it in another, where it has to answer: so its waits of all
 * communicators are entered here. Safe from any thread.
 */
class OwnWaits {
 public:
  static OwnWaits& of_this_process();
  /** Those of a simulated process of this number, which never forks. */
  OwnWaits(const TimeSource& time, ProcessNumber number);
  OwnWaits(const OwnWaits&) = delete;
  OwnWaits& operator=(const OwnWaits&) = delete;
  ~OwnWaits() = default;

  /** This process's. A forked child has one of its own. */
  ProcessNumber number();

  /** The calling thread waits for `processes`: until it says otherwise, or has not said so for half
   * a second. False if it has said so within the last millisecond, and nothing was entered. */
  bool enter(std::span<const ProcessNumber> processes);
  /** Does enter(), and lends the correspondent some time. */
  void wait_for(std::span<const ProcessNumber> processes) {
    if (!enter(processes)) return;
    if (Correspondent* const correspondent = correspondent_) correspondent->listen();
  }
  /** The calling thread waits for nobody any more. */
  void forget() noexcept;
  /** Whether no thread has entered its wait for some time. */
  bool are_quiet() const noexcept;
  /** For whom this process waits: in ascending order, without itself. */
  RecycledVector<ProcessNumber> awaited();

  /** `correspondent` lives as long as the process. */
  void set_correspondent(Correspondent* correspondent) { correspondent_ = correspondent; }
  /** Null where there is nobody to correspond with. */
  Correspondent* correspondent() const { return correspondent_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::thread::id thread;
    RecycledVector<ProcessNumber> processes;
    Clock::time_point seen;
  };

  OwnWaits();

  const TimeSource& time_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::atomic<Clock::time_point> last_entry_{};
  ProcessNumber number_ = 0;
  std::int32_t numbered_process_ = 0;
  std::atomic<Correspondent*> correspondent_ = nullptr;
};

}  // namespace tutti
