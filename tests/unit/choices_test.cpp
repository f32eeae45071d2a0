// The choice between ways: what is tried, what is kept, and that all ranks do the same.
#include "comm/shm/choices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tutti::shm {
namespace {

using Kind = Way::Kind;

constexpr Way kFirst{Kind::staged, false, 1};
constexpr Way kSecond{Kind::staged, true, 2};
constexpr Way kThird{Kind::single_copy, false, 3};
constexpr int kEnough = 200;  // calls, after which everything is settled

TEST(Chooser, KeepsTheWayWithTheLowestMedian) {
  Chooser chooser({kFirst, kSecond, kThird}, 3);
  std::vector<int> tried(4, 0);
  for (int call = 0; call < kEnough; ++call) {
    const Chooser::Trial trial = chooser.next();
    ++tried.at(static_cast<std::size_t>(trial.way.piece));
    if (trial.number == Chooser::kSettled) continue;
    // The third has the lowest cost once, and a high one otherwise.
    const bool lucky = trial.way == kThird && tried[3] == 2;
    chooser.learn(trial.number, trial.way == kSecond ? 50 : lucky ? 1 : 100);
  }
  EXPECT_EQ(tried[1], 4);
  EXPECT_EQ(tried[3], 4);
  EXPECT_EQ(tried[2], kEnough - 8);
  EXPECT_EQ(chooser.next().way, kSecond);
}

TEST(Chooser, ForgetsTheFirstCostOfEach) {
  Chooser chooser({kFirst, kSecond}, 1);
  for (int call = 0; call < kEnough; ++call) {
    const Chooser::Trial trial = chooser.next();
    if (trial.number == Chooser::kSettled) continue;
    // The first way is cheap only at first, as memory that is warm already would make it.
    const bool first_round = trial.number < 2;
    chooser.learn(trial.number, (trial.way == kFirst) == first_round ? 1 : 9);
  }
  EXPECT_EQ(chooser.next().way, kSecond);
}

TEST(Chooser, StaysOnceSettled) {
  Chooser chooser({kFirst, kSecond}, 3);
  for (int call = 0; call < kEnough; ++call) {
    const Chooser::Trial trial = chooser.next();
    if (trial.number != Chooser::kSettled) chooser.learn(trial.number, 7);
  }
  for (int call = 0; call < kEnough; ++call) {
    const Chooser::Trial trial = chooser.next();
    EXPECT_EQ(trial.number, Chooser::kSettled);
    EXPECT_EQ(trial.way, kFirst) << "of equals, the first";
  }
}

TEST(Chooser, HasNothingToTryWithOneWay) {
  Chooser chooser({kThird}, 3);
  EXPECT_EQ(chooser.next().number, Chooser::kSettled);
  EXPECT_EQ(chooser.next().way, kThird);
}

TEST(Chooser, GoesOnWhileTheLastCostIsOutstanding) {
  Chooser chooser({kFirst, kSecond}, 1);
  for (int call = 0; call < 4; ++call) chooser.next();
  EXPECT_EQ(chooser.next().number, Chooser::kSettled);
  EXPECT_EQ(chooser.next().way, kFirst);
}

/** Some ranks that make the same calls; what each pays differs. */
class Ranks {
 public:
  explicit Ranks(int count, TaskKind kind = TaskKind::all_reduce)
      : kind_(kind), ranks_(static_cast<std::size_t>(count)) {}

  /** One call; the way that all took. */
  Way call(std::int64_t bytes, Choices::Allowed allowed,
           const std::function<std::uint32_t(std::size_t rank, const Way&)>& cost) {
    std::vector<std::optional<Choices::Choice>> early(ranks_.size());
    std::uint32_t slowest = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (bytes <= Choices::kOneShot) early[rank] = ranks_[rank].before(kind_, bytes);
      slowest = std::max(slowest, ranks_[rank].noted());
    }
    std::vector<Way> ways;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].learn(slowest);
      const auto choice =
          ranks_[rank].after(kind_, bytes, allowed, early[rank] ? &*early[rank] : nullptr);
      if (choice.trial != Chooser::kSettled) {
        ranks_[rank].note(choice, cost(rank, choice.way));
      }
      ways.push_back(choice.way);
      EXPECT_EQ(choice.way, ways.front()) << "rank " << rank << " goes another way";
    }
    return ways.front();
  }
  void force(const Way& way) {
    for (Choices& rank : ranks_) rank.force(way);
  }

 private:
  TaskKind kind_;
  std::vector<Choices> ranks_;
};

TEST(Choices, TheSlowestRankCounts) {
  Ranks ranks(3);
  Way last;
  for (int call = 0; call < kEnough; ++call) {
    // Rank 1 alone suffers from streaming.
    last = ranks.call(1 << 20, {true, false}, [](std::size_t rank, const Way& way) {
      return way.streamed ? (rank == 1 ? 500U : 1U) : 100U;
    });
  }
  EXPECT_EQ(last, (Way{Kind::direct, false, 0}));
}

TEST(Choices, BriefMessagesGoByOneShotUntried) {
  Choices choices;
  EXPECT_TRUE(choices.brief(57));
  EXPECT_TRUE(choices.brief(Choices::kBrief));
  EXPECT_FALSE(choices.brief(Choices::kBrief + 1));
  choices.force({Kind::one_shot, true, 0});
  EXPECT_FALSE(choices.brief(57));
  choices.force(Choices::kPlainShot);
  EXPECT_TRUE(choices.brief(57));
}

TEST(Choices, OnlyAllReduceKeepsToTheDirectWay) {
  const auto cost = [](std::size_t, const Way& way) { return way.kind == Kind::direct ? 9U : 1U; };
  for (const TaskKind kind : {TaskKind::all_reduce, TaskKind::all_gather}) {
    Ranks ranks(2, kind);
    Way last;
    for (int call = 0; call < kEnough; ++call) last = ranks.call(1 << 20, {true, false}, cost);
    EXPECT_EQ(last.kind, kind == TaskKind::all_reduce ? Kind::direct : Kind::staged);
  }
}

TEST(Choices, SizesAndAllowancesHaveChoicesOfTheirOwn) {
  Ranks ranks(2);
  const auto streaming = [](std::size_t, const Way& way) { return way.streamed ? 1U : 9U; };
  const auto plain = [](std::size_t, const Way& way) { return way.streamed ? 9U : 1U; };
  Way small;
  Way large;
  Way own;
  for (int call = 0; call < kEnough; ++call) {
    small = ranks.call(1 << 20, {true, false}, plain);
    large = ranks.call(1 << 24, {true, false}, streaming);
    own = ranks.call(1 << 20, {false, false}, streaming);
  }
  EXPECT_EQ(small, (Way{Kind::direct, false, 0}));
  EXPECT_EQ(large, (Way{Kind::direct, true, 0}));
  EXPECT_EQ(own.kind, Kind::staged);
  EXPECT_TRUE(own.streamed);
}

TEST(Choices, AnImpossibleWayIsNeverTaken) {
  Ranks ranks(2);
  const auto cost = [](std::size_t, const Way& way) {
    return way.kind == Kind::one_shot ? 9U : 1U;
  };
  for (const std::int64_t bytes : {57, 1000, 64 * 1024, 64 * 1024 + 1, 1 << 20}) {
    for (int call = 0; call < kEnough; ++call) {
      // What is allowed changes from call to call, so that the guess before is often wrong.
      const bool direct = call % 3 == 0;
      const Way way = ranks.call(bytes, {direct, false}, cost);
      EXPECT_NE(way.kind, Kind::single_copy);
      EXPECT_TRUE(direct || way.kind != Kind::direct);
      EXPECT_TRUE(bytes <= Choices::kOneShot || way.kind != Kind::one_shot);
      EXPECT_TRUE(way.kind != Kind::staged || way.piece > 0);
    }
  }
}

TEST(Choices, AForcedWayIsTakenWhereItIsPossible) {
  Ranks ranks(2);
  const auto cost = [](std::size_t, const Way&) { return 1U; };
  const Way copy{Kind::single_copy, false, 4096};
  ranks.force(copy);
  EXPECT_EQ(ranks.call(1 << 20, {false, true}, cost), copy);
  EXPECT_EQ(ranks.call(1 << 20, {true, false}, cost).kind, Kind::direct);
  EXPECT_EQ(ranks.call(1 << 20, {false, false}, cost).kind, Kind::staged);
  ranks.force({Kind::one_shot, true, 0});
  EXPECT_EQ(ranks.call(1000, {true, false}, cost), (Way{Kind::one_shot, true, 0}));
  EXPECT_EQ(ranks.call(1 << 20, {true, false}, cost).kind, Kind::direct);
}

}  // namespace
}  // namespace tutti::shm
