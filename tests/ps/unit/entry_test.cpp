// Which ids get a row.
#include "ps/table/entry.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

TEST(Admission, AllGetARowAtOnce) {
  for (const Entry& entry : {Entry(AdmitAll{}), Entry(AdmitProbability{1.0}), Entry(AdmitCount{1}),
                             Entry(AdmitShowClick{.threshold = 0.0F})}) {
    Admission admission(entry, 1);
    EXPECT_TRUE(admission.admits_all());
    EXPECT_TRUE(admission.admits(5, 0, 0));
    EXPECT_EQ(admission.bytes(), 0);
  }
}

TEST(Admission, ProbabilityIsAPropertyOfTheId) {
  Admission admission(AdmitProbability{0.25}, 1);
  Admission again(AdmitProbability{0.25}, 1);
  Admission more(AdmitProbability{0.5}, 1);
  Admission other(AdmitProbability{0.25}, 2);
  EXPECT_FALSE(admission.admits_all());
  constexpr int kIds = 100'000;
  int admitted = 0;
  int both = 0;
  for (std::int64_t id = -kIds / 2; id < kIds / 2; ++id) {
    const bool admits = admission.admits(id, 0, 0);
    admitted += admits ? 1 : 0;
    EXPECT_EQ(again.admits(id, 9, 9), admits);
    if (!admits) continue;
    EXPECT_TRUE(more.admits(id, 0, 0));
    both += other.admits(id, 0, 0) ? 1 : 0;
  }
  EXPECT_NEAR(admitted, kIds / 4.0, 700);
  EXPECT_NEAR(both, kIds / 16.0, 400);
  Admission none(AdmitProbability{0.0}, 1);
  EXPECT_FALSE(none.admits(1, 0, 0));
}

TEST(Admission, CountsPushesOfEachId) {
  Admission admission(AdmitCount{3}, 1);
  for (int push = 1; push <= 5; ++push) {
    for (std::int64_t id = 0; id < 100; ++id) EXPECT_EQ(admission.admits(id, 0, 0), push >= 3);
  }
}

TEST(Admission, NeverTooLateAndSeldomTooEarlyHoweverManyIdsThereAre) {
  // So many that the sketch grows several times while they are counted.
  constexpr std::int64_t kIds = 60'000;
  Admission admission(AdmitCount{4}, 9);
  const std::int64_t bytes = admission.bytes();
  int early = 0;
  for (int push = 1; push <= 4; ++push) {
    for (std::int64_t id = 0; id < kIds; ++id) {
      const bool admits = admission.admits(id * 1000, 0, 0);
      EXPECT_TRUE(admits || push < 4);
      if (push < 4 && admits) ++early;
    }
  }
  EXPECT_LT(early, kIds / 50);
  EXPECT_GT(admission.bytes(), bytes);
  EXPECT_LT(admission.bytes(), 32 * 2 * 4 * kIds);
}

TEST(Admission, WeighsShowsAndClicks) {
  Admission admission(
      {AdmitShowClick{.show_coefficient = 0.25F, .click_coefficient = 1.0F, .threshold = 2.0F}}, 1);
  EXPECT_FALSE(admission.admits(1, 4, 0));
  EXPECT_FALSE(admission.admits(1, 3, 0));
  EXPECT_TRUE(admission.admits(1, 1, 0));
  EXPECT_FALSE(admission.admits(2, 0, 1));
  EXPECT_TRUE(admission.admits(2, 0, 1));
  EXPECT_FALSE(admission.admits(3, 0, 0));
  // What is no number, or less than nothing, counts nothing.
  EXPECT_FALSE(admission.admits(3, std::numeric_limits<float>::quiet_NaN(), 0));
  EXPECT_FALSE(admission.admits(3, -100, 0));
  EXPECT_TRUE(admission.admits(3, 0, 2));
}

TEST(Admission, SavedCountsGoOnAnywhere) {
  Admission first(AdmitCount{3}, 1);
  Admission second(AdmitCount{3}, 1);
  for (std::int64_t id = 0; id < 5000; ++id) first.admits(id, 0, 0);
  for (std::int64_t id = 5000; id < 5010; ++id) second.admits(id, 0, 0);
  Admission both(AdmitCount{3}, 1);
  both.merge(second.counts());
  both.merge(first.counts());
  EXPECT_EQ(both.bytes(), first.bytes());
  both.merge({});
  int early = 0;
  for (std::int64_t id = 0; id < 5010; ++id) {
    if (both.admits(id, 0, 0)) ++early;
    EXPECT_TRUE(both.admits(id, 0, 0));
  }
  EXPECT_LT(early, 100);
}

TEST(Admission, CountsOfAPushTakeNoMemoryOnceThereIsRoom) {
  constexpr std::int64_t kPushes = 50'000;
  Admission admission(AdmitCount{3}, 1);
  for (const std::int64_t first : {std::int64_t{0}, kPushes}) {
    admission.make_room(kPushes);
    const double* const before = admission.counts().data();
    for (std::int64_t id = first; id < first + kPushes; ++id) admission.admits(id, 0, 0);
    EXPECT_EQ(admission.counts().data(), before);
  }
}

TEST(Admission, RefusesCountsThatAreNone) {
  Admission admission(AdmitCount{3}, 1);
  const std::vector<double> good(admission.counts().begin(), admission.counts().end());
  EXPECT_TRUE(Admission::are_counts(good));
  std::vector<double> bad(good.size() - 4);
  EXPECT_THROW(admission.merge(bad), InvalidArgument);
  bad = good;
  bad[17] = -1;
  EXPECT_THROW(admission.merge(bad), InvalidArgument);
  bad[17] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(admission.merge(bad), InvalidArgument);
  EXPECT_FALSE(Admission::are_counts(std::vector<double>(4)));
}

}  // namespace
}  // namespace tutti::ps
