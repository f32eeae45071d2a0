// Ranks are killed and stopped while they use a store: what the others see of it, and of whom they
// hear.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/shm/store/robust_lock.hpp"
#include "rig/processes.hpp"
#include "support/leftovers.hpp"
#include "tutti/store.hpp"

namespace tutti::test::store_loss_test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kNever = 100s;  // a deadline that no test waits for
constexpr std::chrono::milliseconds kPatience = 30s;

std::vector<std::byte> filled(std::size_t size, int with) {
  return std::vector<std::byte>(size, static_cast<std::byte>(with));
}

/** Ranks that have a store, each in a process of its own. */
class StoreLoss : public ::testing::Test {
 protected:
  static constexpr std::size_t kMostRanks = 3;
  using Body = std::function<void(int rank, Store& store, Report& report)>;

  void start(int ranks, const Body& body) {
    const UniqueId id = UniqueId::create();
    for (int rank = 0; rank < ranks; ++rank) {
      processes_.start([&, rank] {
        Report& report = (*reports_)[static_cast<std::size_t>(rank)];
        const std::string outcome = outcome_of([&] {
          Communicator comm(rank, ranks, id, {kNever});
          Store store(comm);
          comm.barrier();
          body(rank, store, report);
        });
        if (!report.ended) report.end_with(outcome);
      });
    }
  }

  Report& report_of(int rank) { return (*reports_)[static_cast<std::size_t>(rank)]; }
  std::string outcome_of_rank(int rank) {
    EXPECT_TRUE(holds_within(kPatience, [&] { return report_of(rank).ended.load(); }))
        << "rank " << rank << " does not end";
    return report_of(rank).outcome.data();
  }

  const Leftovers before_;
  Shared<std::array<Report, kMostRanks>> reports_;
  Processes processes_;
};

/** Memory whose second page makes whoever reads it send itself a signal. */
std::span<const std::byte> with_trap(int signal) {
  static int what = 0;
  what = signal;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("cannot map memory", errno);
  static std::byte* second = nullptr;
  second = static_cast<std::byte*>(memory) + page;
  ::mprotect(second, page, PROT_NONE);
  struct sigaction action {};
  action.sa_handler = [](int) {
    ::mprotect(second, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), PROT_READ);
    ::raise(what);
  };
  ::sigaction(SIGSEGV, &action, nullptr);
  return {static_cast<const std::byte*>(memory), 2 * page};
}

TEST_F(StoreLoss, ADeadRankEndsTheWaitsOfAllAtOnce) {
  start(3, [](int rank, Store& store, Report& report) {
    store.set("there", filled(10, 1));
    ++report.calls;
    if (rank == 2) store.get("never");
    const std::string outcome =
        outcome_of([&] { rank == 0 ? store.get("never") : store.pop("never"); });
    store.set("from " + std::to_string(rank), filled(100'000, rank));
    if (store.get("there") != filled(10, 1)) report.end_with("a value has gone");
    if (store.get("from " + std::to_string(rank)) != filled(100'000, rank)) {
      report.end_with("a value is wrong");
    }
    if (!report.ended) report.end_with(outcome);
  });
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(holds_within(kPatience, [&] { return report_of(rank).calls > 0; }));
  }
  processes_.send(2, SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcome_of_rank(rank), "lost 2: lost rank 2: its process has ended");
  }
}

TEST_F(StoreLoss, OneThatIsKilledWhileItSetsAValueLeavesTheOldOne) {
  start(2, [](int rank, Store& store, Report& report) {
    if (rank == 1) {
      store.set("it", filled(3, 7));
      store.set("ready", {});
      store.set("it", with_trap(SIGKILL));
      return;
    }
    store.get("ready");
    const std::string outcome = outcome_of([&] { store.get("never"); });
    if (store.get("it") != filled(3, 7)) report.end_with("the old value has gone");
    store.set("it", filled(5000, 8));
    if (store.pop("it") != filled(5000, 8)) report.end_with("the new value is wrong");
    if (!report.ended) report.end_with(outcome);
  });
  EXPECT_EQ(outcome_of_rank(0), "lost 1: lost rank 1: its process has ended");
}

TEST_F(StoreLoss, OneThatIsStoppedWhileItSetsAValueHoldsNobodyUp) {
  start(2, [](int rank, Store& store, Report& report) {
    if (rank == 1) return store.set("it", with_trap(SIGSTOP));
    holds_within(kPatience, [&] { return report.calls == 1; });  // it has stopped
    outcome_of([&] { store.get("it", 0ms); });
    store.set("it", filled(5000, 8));
    if (store.pop("it") != filled(5000, 8)) report.end_with("the value is wrong");
    report.calls = 2;
    if (store.get("it").size() <= 5000) report.end_with("what it set is not there");
  });
  ASSERT_TRUE(processes_.stops(1, kPatience));
  report_of(0).calls = 1;
  EXPECT_TRUE(holds_within(kPatience, [&] { return report_of(0).calls == 2; }));
  processes_.send(1, SIGCONT);
  EXPECT_EQ(outcome_of_rank(0), "nothing");
  EXPECT_EQ(outcome_of_rank(1), "nothing");
}

TEST_F(StoreLoss, WhoeverIsKilledAtAnyMomentLeavesWholeValues) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 25; ++trial) {
    Shared<std::array<Report, kMostRanks>> reports;
    Processes processes;
    const UniqueId id = UniqueId::create();
    for (int rank = 0; rank < 2; ++rank) {
      processes.start([&, rank] {
        Report& report = (*reports)[static_cast<std::size_t>(rank)];
        const std::string outcome = outcome_of([&] {
          Communicator comm(rank, 2, id, {kNever});
          Store store(comm);
          comm.barrier();
          for (int round = 0;; ++round) {
            const std::size_t size = round % 5 == 0 ? 200'000 : 3000;
            store.set("it", filled(size + static_cast<std::size_t>(rank), round));
            store.add("count", 1);
            if (round % 3 == 0) store.set("other", filled(150'000, round));
            if (round % 3 == 1) outcome_of([&] { store.pop("other", 0ms); });
            const std::vector<std::byte> seen = store.get("it");
            const bool whole = std::all_of(seen.begin(), seen.end(),
                                           [&](std::byte one) { return one == seen.front(); });
            if (!whole) return report.end_with("a torn value");
            ++report.calls;
            const std::string missing = outcome_of([&] { store.get("never", 0ms); });
            if (missing.starts_with("lost")) return report.end_with(missing);
          }
        });
        if (!report.ended) report.end_with(outcome);
      });
    }
    const std::uint64_t calls = random() % 200;
    ASSERT_TRUE(holds_within(kPatience, [&] { return (*reports)[1].calls >= calls; }));
    processes.send(1, SIGKILL);
    ASSERT_TRUE(holds_within(kPatience, [&] { return (*reports)[0].ended.load(); }));
    const std::string outcome = (*reports)[0].outcome.data();
    EXPECT_NE(outcome.find("lost 1: lost rank 1: "), std::string::npos) << outcome;
  }
  EXPECT_EQ(before_.in_dev_shm(), "");
}

// --- The lock -----------------------------------------------------------------------------------

class StoreLock : public ::testing::Test {
 protected:
  StoreLock() { lock_->initialise(); }

  /** A process that takes the lock as rank 5, then sends itself `signal`. */
  void start(int signal) {
    processes_.start([&, signal] {
      const shm::RobustLock::Hold hold(*lock_, 5, kNever);
      ::raise(signal);
    });
  }
  std::string take(std::chrono::milliseconds timeout) {
    return outcome_of([&] { const shm::RobustLock::Hold hold(*lock_, 1, timeout); });
  }

  Shared<shm::RobustLock> lock_;
  Processes processes_;
};

TEST_F(StoreLock, WhoDiesInTheMiddleOfAChangeIsNamedToAllForEver) {
  start(SIGKILL);
  ASSERT_TRUE(processes_.wait(0, kPatience));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(take(kNever),
              "lost 5: lost rank 5: its process has ended in the middle of a change of the store");
  }
}

TEST_F(StoreLock, WhoStopsInTheMiddleOfAChangeIsNamedAtTheDeadline) {
  start(SIGSTOP);
  ASSERT_TRUE(processes_.stops(0, kPatience));
  EXPECT_EQ(take(200ms), "lost 5: lost rank 5: did not end a change of the store within 0.2 s");
  processes_.send(0, SIGCONT);
  EXPECT_EQ(take(kPatience), "nothing");
}

}  // namespace
}  // namespace tutti::test::store_loss_test
