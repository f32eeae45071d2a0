// What ranks tell each other of a failure is cut in one way, and says so.
#include "comm/failure.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/local.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

PeerLost raised(const FailureReport& report) {
  try {
    report.raise();
  } catch (const PeerLost& error) {
    return error;
  }
}

TEST(FailureReport, KeepsWhatFits) {
  FailureReport report{};
  const std::vector<int> ranks{3, 17};
  report.set_lost(ranks, "did not answer within 3.0 s");
  EXPECT_EQ(raised(report).ranks(), ranks);
  EXPECT_EQ(raised(report).reason(), "did not answer within 3.0 s");
  report.set_mismatch("they differ");
  EXPECT_THROW(report.raise(), MismatchError);
  report.set_mismatch("they differ", Witnesses::two);
  EXPECT_THROW(report.raise(), NeighboursMismatch);
  const std::string longest(FailureReport::kMostText, 'x');
  report.set_mismatch(longest);
  EXPECT_EQ(report.text_value(), longest);
}

TEST(FailureReport, SaysWhetherProcessesHaveEnded) {
  FailureReport report{};
  report.set_lost(std::array{3}, "its process has ended", Ended::yes);
  EXPECT_THROW(report.raise(), ProcessesEnded);
  report.set_lost(std::array{3}, "did not answer within 3.0 s");
  try {
    report.raise();
  } catch (const PeerLost& error) {
    EXPECT_EQ(ended_of(error), Ended::unknown);
  }
}

/** A leader has seen the end of rank 7's process, and shows it. */
TEST(FailureReport, TheRanksOfAHostTellEachOtherOfAnEnd) {
  const UniqueId id = UniqueId::create();
  on_threads(2, [&](int rank) {
    try {
      shm::Local local(id, rank, {0, 1}, 20s);
      if (rank == 0) local.group().show_lost(std::array{7}, "its process has ended", Ended::yes);
      const auto end = std::chrono::steady_clock::now() + 20s;
      while (std::chrono::steady_clock::now() < end) local.group().check_failure();
      ADD_FAILURE() << "rank " << rank << " heard of nothing";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector{7});
      EXPECT_EQ(ended_of(error), Ended::yes);
    }
  });
}

/** Rank 2 of a host of four finds a mismatch. */
TEST(FailureReport, ItsFinderAndTheFirstTwoThatHearOfItTellOthers) {
  const UniqueId id = UniqueId::create();
  std::array<std::atomic<int>, 3> heralds{};
  std::atomic<int> heard = 0;
  on_threads(4, [&](int rank) {
    shm::Local local(id, rank, {0, 1, 2, 3}, 20s);
    shm::LocalGroup& group = local.group();
    if (rank == 2) group.show_mismatch("they differ", Witnesses::two);
    const auto end = std::chrono::steady_clock::now() + 20s;
    try {
      while (std::chrono::steady_clock::now() < end) group.check_failure();
      ADD_FAILURE() << "rank " << rank << " heard of nothing";
    } catch (const NeighboursMismatch& error) {
      const Herald herald = group.show_mismatch(error.what(), Witnesses::two);
      EXPECT_EQ(group.show_mismatch("again", Witnesses::all), herald);
      EXPECT_EQ(herald == Herald::finder, rank == 2);
      ++heralds[static_cast<std::size_t>(herald)];
      ++heard;
    }
    while (heard < 4 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_EQ(heralds[static_cast<std::size_t>(Herald::finder)], 1);
  EXPECT_EQ(heralds[static_cast<std::size_t>(Herald::stand_in)], kStandIns);
  EXPECT_EQ(heralds[static_cast<std::size_t>(Herald::nobody)], 1);
}

TEST(FailureReport, LeavesOutRanksAndSaysHowMany) {
  FailureReport report{};
  std::vector<int> ranks(FailureReport::kMostRanks + 44);
  std::iota(ranks.begin(), ranks.end(), 0);
  report.set_lost(ranks, "no answer");
  EXPECT_EQ(raised(report).ranks().size(), FailureReport::kMostRanks);
  EXPECT_EQ(raised(report).reason(), "no answer (and 44 more ranks)");
}

TEST(FailureReport, CutsBetweenCharacters) {
  FailureReport report{};
  for (std::size_t before = 0; before < 4; ++before) {
    std::string text(before, 'x');
    while (text.size() <= FailureReport::kMostText) text += "\xE2\x82\xAC";  // a euro sign
    report.set_mismatch(text);
    const std::string cut(report.text_value());
    ASSERT_TRUE(cut.ends_with("\xE2\x82\xAC [...]"));
    EXPECT_LE(cut.size(), FailureReport::kMostText);
    EXPECT_GT(cut.size(), FailureReport::kMostText - 3);
    EXPECT_EQ(cut.substr(0, cut.size() - 6), text.substr(0, cut.size() - 6));
  }
}

}  // namespace
}  // namespace tutti::test
