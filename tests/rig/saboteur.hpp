// Makes a rank faulty at the moment that its trial says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "rig/record.hpp"
#include "rig/trial.hpp"

namespace tutti::test {

/** Who has waited so long goes on: the judge is gone. */
inline constexpr std::chrono::seconds kLongerThanATrial{60};

/** What a victim throws whose fault is an exception. */
class Sabotage : public std::runtime_error {
 public:
  Sabotage() : std::runtime_error("thrown on purpose") {}
};

/** What a victim throws that leaves early, so that all ends well as it passes. */
class EarlyLeave : public std::runtime_error {
 public:
  EarlyLeave() : std::runtime_error("leaves early") {}
};

/**
 * Faults of the kind that a process does not notice strike from another thread, some microseconds
 * after a call has begun; the others at the beginning of the call, on the thread that makes it.
 */
class Saboteur {
 public:
  Saboteur(const Trial& trial, int rank, Record& record);
  Saboteur(const Saboteur&) = delete;
  Saboteur& operator=(const Saboteur&) = delete;
  ~Saboteur();

  /** The rank is about to begin a step, or another phase (which are no steps). */
  void before(Phase phase, std::uint64_t step = 0);
  /** It has made all ready for the step, and calls tutti now. */
  void before_call() {
    if (in_due_step_) due_ = true;
  }
  /** Whether the rank is to make another call than the one of this step. */
  bool errs(std::uint64_t step) const {
    return victim_ && trial_.what.fault == Fault::mismatch && is_due(Phase::step, step);
  }
  /** Whether an exception is to be thrown in the backward pass of this step. */
  bool throws(std::uint64_t step) const {
    return victim_ && trial_.what.fault == Fault::exception && is_due(Phase::step, step);
  }

 private:
  bool is_due(Phase phase, std::uint64_t step) const;
  void lie_in_wait();
  void strike();
  void note();

  const Trial& trial_;
  Record& record_;
  RankRecord& own_;
  bool victim_;
  Fault fault_;
  std::int64_t microseconds_ = 0;
  bool in_due_step_ = false;
  std::atomic<bool> near_ = false;  // the step comes soon
  std::atomic<bool> due_ = false;   // it has begun
  std::atomic<bool> over_ = false;  // the rank ends
  std::thread ambush_;
};

/** Adds up for how long a busy machine kept this process from running: how late its timers are, or
 * where the kernel tells how long its first thread was ready but waited for a core, if that is
 * more. */
class Delays {
 public:
  explicit Delays(RankRecord& own);
  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;
  ~Delays();

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace tutti::test
