// What ranks tell each other of a failure is cut in one way, and says so.
#include "comm/failure.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
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
