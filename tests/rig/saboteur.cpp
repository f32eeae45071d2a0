// Strikes.
#include "rig/saboteur.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "support/waited_for_a_core.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

constexpr int kExitCode = 7;

bool strikes_from_ambush(Fault fault) {
  return fault == Fault::kill || fault == Fault::stop || fault == Fault::late ||
         fault == Fault::segfault || fault == Fault::abort || fault == Fault::exit_now;
}

Fault fault_of(const Trial& trial, int rank) {
  if (trial.what.fault != Fault::kill_stop) return trial.what.fault;
  return rank == trial.victims.front() ? Fault::kill : Fault::stop;
}

/** Whether the others have given up, or will not. */
bool others_gave_up(const Trial& trial, Record& record, Clock::time_point since) {
  if (Clock::now() > since + kLongerThanATrial) return true;
  for (int rank = 0; rank < trial.ranks; ++rank) {
    if (!trial.is_victim(rank) && !record.of(rank).settled) return false;
  }
  return true;
}

}  // namespace

Saboteur::Saboteur(const Trial& trial, int rank, Record& record)
    : trial_(trial),
      record_(record),
      own_(record.of(rank)),
      victim_(trial.is_victim(rank)),
      fault_(fault_of(trial, rank)) {
  if (!victim_ || !strikes_from_ambush(fault_)) return;
  const auto at = std::find(trial.victims.begin(), trial.victims.end(), rank);
  microseconds_ = trial.microseconds[static_cast<std::size_t>(at - trial.victims.begin())];
  ambush_ = std::thread([this] { lie_in_wait(); });
}

Saboteur::~Saboteur() {
  over_ = true;
  if (ambush_.joinable()) ambush_.join();
}

bool Saboteur::is_due(Phase phase, std::uint64_t step) const {
  const bool in_step =
      trial_.what.phase != Phase::meeting && trial_.what.phase != Phase::destruction;
  if (in_step != (phase == Phase::step)) return false;
  return in_step ? step == static_cast<std::uint64_t>(trial_.step) : phase == trial_.what.phase;
}

void Saboteur::lie_in_wait() {
  while (!near_) {
    if (over_) return;
    std::this_thread::sleep_for(1ms);
  }
  while (!due_) {  // awake, so that the moment can be the very first
    if (over_) return;
    std::this_thread::yield();
  }
  const auto end = Clock::now() + std::chrono::microseconds(microseconds_);
  if (microseconds_ > 1000) std::this_thread::sleep_until(end - 500us);
  while (Clock::now() < end) {
  }
  strike();
}

void Saboteur::note() { own_.struck = now(); }

void Saboteur::strike() {
  note();
  switch (fault_) {
    case Fault::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::segfault:
      ::kill(::getpid(), SIGSEGV);
      break;
    case Fault::abort:
      std::abort();
    case Fault::exit_now:
      ::_exit(kExitCode);
    default:
      ::kill(::getpid(), SIGSTOP);
  }
}

void Saboteur::before(Phase phase, std::uint64_t step) {
  if (!victim_) return;
  if (phase != Phase::step || is_due(phase, step + 1) || is_due(phase, step)) near_ = true;
  if (fault_ == Fault::slow && phase == Phase::step && step % 7 == 3) {
    std::this_thread::sleep_for(trial_.timeout / 2);
  }
  before_call();  // had the last step nothing to call
  if (!is_due(phase, step)) return;
  switch (fault_) {
    case Fault::exit:
      note();
      // A forked child has nothing of its parent's to destroy.
      if (trial_.start == Start::fork) std::_Exit(kExitCode);
      std::exit(kExitCode);
    case Fault::exception:
      note();
      if (trial_.program[step % trial_.program.size()].op == Op::train) return;
      throw Sabotage();
    case Fault::leave:
      note();
      throw EarlyLeave();
    case Fault::mismatch:
      note();
      return;
    case Fault::stall:
    case Fault::busy: {
      note();
      for (const auto since = Clock::now(); !others_gave_up(trial_, record_, since);) {
        if (fault_ == Fault::stall) std::this_thread::sleep_for(1ms);
      }
      return;
    }
    default:
      in_due_step_ = true;
      if (phase != Phase::step) due_ = true;
  }
}

Delays::Delays(RankRecord& own)
    : thread_([this, &own] {
        constexpr auto kPeriod = 10ms;
        constexpr auto kUsual = 10ms;
        std::int64_t timers = 0;
        while (!over_) {
          const auto before = Clock::now();
          std::this_thread::sleep_for(kPeriod);
          const auto late = Clock::now() - before - kPeriod;
          if (late > kUsual) timers += std::chrono::nanoseconds(late).count();
          own.late = std::max(timers, waited_for_a_core());
        }
      }) {}

Delays::~Delays() {
  over_ = true;
  thread_.join();
}

}  // namespace tutti::test
