// Which rows of a table go again.
#include "ps/table/eviction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti::ps {
namespace {

TableSpec table_with(const Eviction& eviction, const Entry& entry = AdmitAll{}) {
  return {.name = "item", .dim = 4, .entry = entry, .eviction = eviction};
}

TEST(Eviction, HistoryIsKeptOnlyForThoseWhoWantIt) {
  EXPECT_FALSE(EvictionPolicy::keeps_history(table_with({})));
  EXPECT_FALSE(EvictionPolicy::keeps_history(table_with({}, AdmitCount{3})));
  EXPECT_TRUE(EvictionPolicy::keeps_history(table_with({}, AdmitShowClick{})));
  EXPECT_TRUE(EvictionPolicy::keeps_history(table_with({.max_age = 1})));
  EXPECT_TRUE(EvictionPolicy::keeps_history(table_with({.max_bytes = 1})));
  EXPECT_TRUE(EvictionPolicy::keeps_history(table_with({.min_score = 0.5F})));
}

TEST(Eviction, NothingIsDueWithoutLimits) {
  const EvictionPolicy policy(table_with({}), 0);
  for (std::int64_t step = 0; step < 5000; ++step) {
    EXPECT_TRUE(policy.ages_due(step).empty());
    EXPECT_TRUE(policy.scores_due(step).empty());
  }
  EXPECT_EQ(policy.surplus(std::int64_t{1} << 40), 0);
}

bool has(const Interval& interval, std::uint64_t number) {
  return interval.first <= number && number <= interval.last;
}

TEST(Eviction, RowsGoOnceTheyAreTooOldAndAtMostAnEighthLater) {
  for (const std::int64_t max_age : {1, 7, 8, 80, 1001}) {
    const EvictionPolicy policy(table_with({.max_age = max_age}), 0);
    for (const std::uint64_t hash : {std::uint64_t{0}, mix64(1), mix64(2), ~std::uint64_t{0}}) {
      for (const std::int64_t pushed : {0, 3, 17}) {
        const RowHistory row{.last_step = pushed};
        std::int64_t gone = pushed;
        while (!(has(policy.ages_due(gone), hash) && policy.too_old(row, gone))) ++gone;
        EXPECT_GT(gone - pushed, max_age);
        EXPECT_LE(gone - pushed, max_age + 1 + max_age / 8);
      }
    }
  }
}

TEST(Eviction, EveryRowIsLookedAtOnceInATurnOfStepsAndFewInEach) {
  for (const std::int64_t every : {1, 3, 64, 1000}) {
    const EvictionPolicy policy(table_with({.min_score = 1.0F, .every = every}, AdmitShowClick{}),
                                0);
    std::uint64_t next = 0;
    for (std::int64_t step = 5 * every; step < 6 * every; ++step) {
      const Interval due = policy.scores_due(step);
      EXPECT_EQ(due.first, next);
      EXPECT_LE(due.last - due.first, ~std::uint64_t{0} / static_cast<std::uint64_t>(every));
      next = due.last + 1;
    }
    EXPECT_EQ(next, 0U) << "all";
  }
}

TEST(Eviction, AnIdIsInTheSameSliceWhateverTheNumberOfServers) {
  for (const Split split : {Split::hash, Split::mod}) {
    for (const int servers : {1, 2, 3, 7}) {
      for (std::int64_t id = -500; id < 500; ++id) {
        const std::uint64_t hash = mix64(static_cast<std::uint64_t>(id));
        const IdPlace place = place_of(id, split, servers);
        for (const Interval& slice :
             {Interval{0, hash}, Interval{hash, hash}, Interval{0, hash - 1},
              Interval{hash + 1, ~std::uint64_t{0}}}) {
          const Interval within = within_of(slice, split, place.server, servers);
          EXPECT_EQ(!within.empty() && has(within, place.within), has(slice, hash));
        }
      }
    }
  }
}

TEST(Eviction, ScoresFadeAndRowsGoBelowTheLeast) {
  const EvictionPolicy policy(
      table_with({.min_score = 1.0F, .decay = 0.5F, .every = 10},
                 AdmitShowClick{.show_coefficient = 0.25F, .click_coefficient = 2.0F}),
      0);
  RowHistory row{.shows = 8.0F, .clicks = 1.0F};  // score 4
  EXPECT_FALSE(policy.fade(row));
  EXPECT_EQ(row.shows, 4.0F);
  EXPECT_EQ(row.clicks, 0.5F);
  EXPECT_FALSE(policy.fade(row));  // 1
  EXPECT_TRUE(policy.fade(row));
}

TEST(Eviction, ASixteenthOfTheRowsGoesAtATime) {
  const EvictionPolicy policy(table_with({.max_bytes = 1}), 1600);
  EXPECT_EQ(policy.surplus(1600), 0);
  EXPECT_EQ(policy.surplus(1601), 101);
  const EvictionPolicy tiny(table_with({.max_bytes = 1}), 1);
  EXPECT_EQ(tiny.surplus(1), 0);
  EXPECT_EQ(tiny.surplus(2), 1);
  EXPECT_FALSE(policy.by_shards() || tiny.by_shards());
  const EvictionPolicy large(table_with({.max_bytes = 1}), std::int64_t{1} << 23U);
  EXPECT_TRUE(large.by_shards());  // 2^15 a shard
  EXPECT_EQ(large.surplus_of(1, 32'768, 0), 0);
  EXPECT_EQ(large.surplus_of(1, 32'769, 0), 2049);
  EXPECT_EQ(large.surplus_of(1, 31'744, 1), 0) << "half of a sixteenth less, in its turn";
  EXPECT_EQ(large.surplus_of(1, 31'745, 1), 1025);
}

TEST(Eviction, AFewShardsOfALargeTableEvictInEachStepThoughAllGrowAlike) {
  const EvictionPolicy policy(table_with({.max_bytes = 1}), std::int64_t{1} << 23U);
  std::vector<std::int64_t> rows(256, 30'720);
  for (std::int64_t step = 1; step <= 300; ++step) {
    int evicting = 0;
    for (int shard = 0; shard < 256; ++shard) {
      std::int64_t& own = rows[static_cast<std::size_t>(shard)];
      own += 40;
      const std::int64_t surplus = policy.surplus_of(shard, own, step);
      own -= surplus;
      if (surplus > 0) ++evicting;
    }
    EXPECT_LE(evicting, 16);
  }
}

TEST(Eviction, ShardsThatGrowFasterThanTheirTurnsComeAreNeverTooFull) {
  const EvictionPolicy policy(table_with({.max_bytes = 1}), std::int64_t{1} << 23U);
  for (const std::int64_t growth : {64, 200}) {  // 64: half of a sixteenth in sixteen steps
    std::vector<std::int64_t> rows(256);
    int most_evicting = 0;
    for (std::int64_t step = 1; step <= 1000; ++step) {
      int evicting = 0;
      for (int shard = 0; shard < 256; ++shard) {
        std::int64_t& own = rows[static_cast<std::size_t>(shard)];
        own += growth;
        const std::int64_t surplus = policy.surplus_of(shard, own, step);
        own -= surplus;
        EXPECT_LE(own, 32'768);
        if (surplus > 0) ++evicting;
      }
      most_evicting = std::max(most_evicting, evicting);
    }
    if (growth == 64) {
      EXPECT_EQ(most_evicting, 16);
    }
  }
}

TEST(Eviction, TheLeastRecentGoAsManyAsMustWhateverTheirOrder) {
  std::vector<Candidate> rows;
  for (std::uint64_t i = 0; i < 100; ++i)
    rows.push_back({static_cast<std::int64_t>(i * 7 % 10), i * 13 % 100, 0, nullptr});
  std::vector<Candidate> others(rows.rbegin(), rows.rend());
  std::vector<std::int64_t> gone(10);
  choose_least_recent(rows, 25);
  for (const Candidate& row : rows) ++gone[static_cast<std::size_t>(row.last_step)];
  EXPECT_EQ(gone, (std::vector<std::int64_t>{10, 10, 5, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(std::ranges::is_sorted(rows, {}, &Candidate::within));
  choose_least_recent(others, 25);
  EXPECT_TRUE(std::ranges::equal(rows, others, {}, &Candidate::within, &Candidate::within));
  choose_least_recent(rows, 100);
  EXPECT_EQ(rows.size(), 25U);
}

}  // namespace
}  // namespace tutti::ps
