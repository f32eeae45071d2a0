// Ways that are tried in turns, and the one that is kept.
#include "comm/trials.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/hosts/lane_trials.hpp"

namespace tutti {
namespace {

/** Makes all trials; a call in way w costs costs[w], but `early` as long as costs do not count. */
void try_all(Trials& trials, const std::vector<std::uint32_t>& costs, int uncounted,
             const std::vector<std::uint32_t>& early) {
  while (!trials.are_over()) {
    const Trials::Trial trial = trials.next();
    ASSERT_NE(trial.number, Trials::kSettled);
    const auto way = static_cast<std::size_t>(trial.way);
    trials.learn(trial.number, trial.number < uncounted ? early[way] : costs[way]);
  }
}

TEST(Trials, TakeEachWayOnceARound) {
  Trials trials(3, 3);
  const std::vector<int> expected{0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2};
  for (const int way : expected) EXPECT_EQ(trials.next().way, way);
  EXPECT_EQ(trials.next().number, Trials::kSettled);
}

/** As where a step exchanges some buckets of different cost. */
TEST(Trials, TryEachWayWithEachOfSomeCallsInTurns) {
  constexpr int kTrials = 2 * 16;
  for (const int buckets : {2, 4, 8}) {
    Trials trials(2, kTrials / 2 - 1);
    std::vector<int> times(2U * static_cast<std::size_t>(buckets));  // by bucket and way
    for (int call = 0; call < kTrials; ++call) {
      const auto bucket = static_cast<std::size_t>(call % buckets);
      ++times[2 * bucket + static_cast<std::size_t>(trials.next().way)];
    }
    for (const int one : times) EXPECT_EQ(one, kTrials / (2 * buckets)) << buckets;
  }
}

TEST(Trials, ForgetWhatWarmsUp) {
  constexpr int kWarmUp = 4;
  Trials trials(2, 3, kWarmUp);
  try_all(trials, {9, 5}, 2 * kWarmUp, {1, 100});
  EXPECT_EQ(trials.best(), 1);
  EXPECT_EQ(trials.next().way, 1);
}

TEST(Trials, AreNotOverBeforeTheLastCostIsKnown) {
  Trials trials(2, 1);
  for (int call = 0; call < 4; ++call) {
    EXPECT_FALSE(trials.are_over());
    const Trials::Trial trial = trials.next();
    trials.learn(trial.number, 7);
  }
  EXPECT_TRUE(trials.are_over());
}

TEST(Trials, KeepToWhatOthersHaveFound) {
  Trials trials(2, 3);
  try_all(trials, {9, 5}, 0, {});
  trials.settle(0);
  EXPECT_EQ(trials.next().way, 0);
  EXPECT_EQ(trials.next().number, Trials::kSettled);
}

TEST(Trials, OfOneWayAreOverAtOnce) {
  Trials trials(1, 3);
  EXPECT_TRUE(trials.are_over());
  EXPECT_EQ(trials.next().number, Trials::kSettled);
}

TEST(SizeClass, IsTheExponentOfThePowerOfTwoThatIsNoLess) {
  EXPECT_EQ(size_class_of(0), 0U);
  EXPECT_EQ(size_class_of(1), 0U);
  EXPECT_EQ(size_class_of(1025), 11U);
  EXPECT_EQ(size_class_of(std::int64_t{1} << 40U), 40U);
  EXPECT_EQ(size_class_of((std::int64_t{1} << 40U) + 1), 41U);
}

TEST(LaneTrials, AreOneForEachClassFromThatOfTheShortestSumsOn) {
  constexpr std::int64_t kFewest = std::int64_t{3} << 17U;
  LaneTrials lanes(kFewest, 3);
  Trials* const first = &lanes.of(kFewest);
  EXPECT_EQ(&lanes.of(std::int64_t{1} << 19U), first);
  EXPECT_EQ(&lanes.of((std::int64_t{1} << 19U) + 1), first + 1);
  EXPECT_EQ(&lanes.of(std::int64_t{1} << 47U), first + 28);
  EXPECT_EQ(lanes.of(std::int64_t{1} << 47U).next().number, 0);
}

}  // namespace
}  // namespace tutti
