// Which ids get a row.
#include "ps/table/entry.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "ps/table/eviction.hpp"

namespace tutti::ps::entry_test {
namespace {

using Ids = std::vector<std::int64_t>;

TableIdentity identity_of(const Entry& entry, std::uint64_t seed = 1) {
  return {.spec = {.name = "item", .dim = 1, .entry = entry}, .seed = seed};
}

/** Pushes ids that have no row, and tells which get one. */
class Pushes {
 public:
  explicit Pushes(Admission& admission) : admission_(admission) {}

  Ids operator()(const Ids& ids, float shows = 0, float clicks = 0) {
    const std::vector<float> all_shows(ids.size(), shows);
    const std::vector<float> all_clicks(ids.size(), clicks);
    std::vector<std::size_t> places(ids.size());
    std::iota(places.begin(), places.end(), 0);
    Ids admitted;
    for (const std::size_t i : admission_.choose(
             {.ids = ids, .shows = all_shows.data(), .clicks = all_clicks.data()}, places, step_)) {
      admitted.push_back(ids[i]);
    }
    admission_.count();
    return admitted;
  }
  void at(std::int64_t step) { step_ = step; }

 private:
  Admission& admission_;
  std::int64_t step_ = 0;
};

Ids ids_from(std::int64_t first, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(Admission, AllGetARowAtOnce) {
  for (const Entry& entry : {Entry(AdmitAll{}), Entry(AdmitProbability{1.0}), Entry(AdmitCount{1}),
                             Entry(AdmitShowClick{.threshold = 0.0F})}) {
    const Admission admission(identity_of(entry));
    EXPECT_TRUE(admission.admits_all());
    EXPECT_EQ(admission.bytes(), 0);
  }
}

TEST(Admission, ProbabilityIsAPropertyOfTheId) {
  const Ids ids = ids_from(-50'000, 100'000);
  const auto admitted = [&](double probability, std::uint64_t seed) {
    Admission admission(identity_of(AdmitProbability{probability}, seed));
    EXPECT_FALSE(admission.admits_all());
    const Ids once = Pushes(admission)(ids);
    EXPECT_EQ(Pushes(admission)(ids, 9, 9), once);
    EXPECT_EQ(admission.bytes(), 0);
    return std::set(once.begin(), once.end());
  };
  const auto some = admitted(0.25, 1);
  const auto more = admitted(0.5, 1);
  const auto other = admitted(0.25, 2);
  EXPECT_NEAR(static_cast<double>(some.size()), 25'000.0, 700);
  int both = 0;
  for (const std::int64_t id : some) {
    EXPECT_TRUE(more.contains(id));
    both += other.contains(id) ? 1 : 0;
  }
  EXPECT_NEAR(both, 6250.0, 400);
  EXPECT_TRUE(admitted(0.0, 1).empty());
}

TEST(Admission, CountsPushesOfEachId) {
  Admission admission(identity_of(AdmitCount{3}));
  Pushes push(admission);
  const Ids ids = ids_from(-50, 100);
  EXPECT_TRUE(push(ids).empty());
  EXPECT_TRUE(push(ids).empty());
  EXPECT_EQ(admission.counts()->count(), 100);
  EXPECT_EQ(push(ids), ids);
  EXPECT_EQ(admission.counts()->count(), 0) << "who has a row is counted no more";
  EXPECT_TRUE(push(ids).empty()) << "who has lost it begins again";
}

TEST(Admission, IsExactForMillionsOfIds) {
  constexpr std::int64_t kIds = 2'000'000;
  constexpr std::int64_t kOfAPush = 50'000;
  Admission admission(identity_of(AdmitCount{2}));
  Pushes push(admission);
  const auto push_all = [&](std::int64_t stride) {
    Ids admitted;
    for (std::int64_t first = 0; first < kIds; first += kOfAPush) {
      Ids ids = ids_from(first, kOfAPush);
      std::erase_if(ids, [&](std::int64_t id) { return id % stride != 0; });
      const Ids now = push(ids);
      admitted.insert(admitted.end(), now.begin(), now.end());
    }
    return admitted;
  };
  EXPECT_EQ(std::ssize(push_all(1)), 0);
  EXPECT_EQ(admission.counts()->count(), kIds);
  EXPECT_LE(admission.bytes(), 27 * kIds);
  const Ids admitted = push_all(1000);
  ASSERT_EQ(std::ssize(admitted), kIds / 1000);
  for (std::int64_t i = 0; i < kIds / 1000; ++i) {
    EXPECT_EQ(admitted[static_cast<std::size_t>(i)], 1000 * i);
  }
}

TEST(Admission, WeighsShowsAndClicks) {
  Admission admission(identity_of(
      AdmitShowClick{.show_coefficient = 0.25F, .click_coefficient = 1.0F, .threshold = 2.0F}));
  Pushes push(admission);
  EXPECT_TRUE(push({1}, 4, 0).empty());
  EXPECT_TRUE(push({1}, 3, 0).empty());
  EXPECT_EQ(push({1}, 1, 0), Ids{1});
  EXPECT_TRUE(push({2}, 0, 1).empty());
  EXPECT_EQ(push({2}, 0, 1), Ids{2});
  EXPECT_TRUE(push({3}, 0, 0).empty());
  // What is no number, or less than nothing, counts nothing.
  EXPECT_TRUE(push({3}, std::numeric_limits<float>::quiet_NaN(), 0).empty());
  EXPECT_TRUE(push({3}, -100, 0).empty());
  EXPECT_EQ(admission.counts()->count(), 0);
  EXPECT_EQ(push({3}, 0, 2), Ids{3});
}

TEST(Admission, SumsAreExact) {
  Admission admission(identity_of(
      AdmitShowClick{.show_coefficient = 0.1F, .click_coefficient = 0, .threshold = 1000.0F}));
  Pushes push(admission);
  // 0.1F is a little more than a tenth.
  for (int i = 1; i < 10'000; ++i) ASSERT_TRUE(push({1}, 1, 0).empty()) << i;
  EXPECT_EQ(push({1}, 1, 0), Ids{1});
}

TEST(Admission, APushThatIsNotAppliedCountsNothing) {
  Admission admission(identity_of(AdmitCount{2}));
  const Ids ids{5};
  const std::vector<std::size_t> places{0};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(admission.choose({.ids = ids}, places, 0).empty());
  EXPECT_TRUE(Pushes(admission)({5}).empty());
  EXPECT_EQ(Pushes(admission)({5}), ids);
}

TEST(Admission, ForgetsWhatIsNotPushedForMaxAge) {
  for (const std::int64_t max_age : {1, 2, 7, 8, 15, 16, 23, 100, 1000}) {
    TableIdentity identity = identity_of(AdmitCount{2});
    identity.spec.eviction.max_age = max_age;
    Admission admission(identity);
    const EvictionPolicy policy(identity.spec, 0);
    Pushes push(admission);
    const Ids ids = ids_from(0, 1000);
    const std::int64_t begin = 5 * max_age + 3;
    push.at(begin);
    push(ids);
    std::int64_t step = begin;
    const auto steps_to = [&](std::int64_t last) {
      while (step < last) {
        ++step;
        admission.counts()->forget_old(policy.ages_due(step), step);
      }
    };
    steps_to(begin + max_age);
    EXPECT_EQ(admission.counts()->count(), 1000) << max_age;
    push.at(step);
    EXPECT_EQ(push(Ids{7}), Ids{7}) << max_age;
    steps_to(begin + max_age + max_age / 2 + 3);
    EXPECT_EQ(admission.counts()->count(), 0) << max_age;
    push.at(step);
    EXPECT_TRUE(push(Ids{8}).empty()) << max_age;
  }
}

TEST(Admission, SavedCountsGoOn) {
  TableIdentity identity = identity_of(AdmitCount{3});
  identity.spec.eviction.max_age = 80;
  Admission first(identity);
  Pushes push(first);
  push.at(20);
  push(ids_from(0, 5000));
  push.at(95);
  push(ids_from(4000, 1000));
  const std::vector<StoredCount> counts = first.counts()->between(0, ~std::uint64_t{0}, 100);
  ASSERT_EQ(counts.size(), 5000U);

  Admission second(identity);
  second.counts()->restore(counts, 1100);
  EXPECT_EQ(second.counts()->count(), 0) << "they are old by now";
  second.counts()->restore(counts, 100);
  EXPECT_EQ(second.counts()->count(), 5000);
  second.counts()->restore(counts, 100);
  EXPECT_EQ(second.counts()->count(), 5000);
  Pushes go_on(second);
  go_on.at(115);
  EXPECT_EQ(go_on(ids_from(0, 5000)), ids_from(4000, 1000));
  EXPECT_TRUE(go_on(ids_from(0, 4000)).empty()) << "their first push was forgotten";
}

}  // namespace
}  // namespace tutti::ps::entry_test
