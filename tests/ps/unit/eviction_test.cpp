// Which rows of a table go again.
#include "ps/table/eviction.hpp"

#include <gtest/gtest.h>

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
  const EvictionPolicy policy(table_with({}), 2, 100);
  for (std::int64_t step = 0; step < 5000; ++step) {
    EXPECT_FALSE(policy.ages_due(step));
    EXPECT_FALSE(policy.scores_due(step));
  }
  EXPECT_EQ(policy.surplus(std::int64_t{1} << 40), 0);
}

TEST(Eviction, RowsGoOnceTheyAreTooOldAndAtMostAnEighthLater) {
  for (const std::int64_t max_age : {1, 7, 8, 80, 1001}) {
    const EvictionPolicy policy(table_with({.max_age = max_age}), 1, 100);
    for (const std::int64_t pushed : {0, 3, 17}) {
      const RowHistory row{.last_step = pushed};
      std::int64_t gone = pushed;
      while (!(policy.ages_due(gone) && policy.too_old(row, gone))) ++gone;
      EXPECT_GT(gone - pushed, max_age);
      EXPECT_LE(gone - pushed, max_age + 1 + max_age / 8);
    }
  }
}

TEST(Eviction, ScoresFadeAndRowsGoBelowTheLeast) {
  const EvictionPolicy policy(
      table_with({.min_score = 1.0F, .decay = 0.5F, .every = 10},
                 AdmitShowClick{.show_coefficient = 0.25F, .click_coefficient = 2.0F}),
      1, 100);
  EXPECT_TRUE(policy.scores_due(10));
  EXPECT_FALSE(policy.scores_due(11));
  RowHistory row{.shows = 8.0F, .clicks = 1.0F};  // score 4
  EXPECT_FALSE(policy.fade(row));
  EXPECT_EQ(row.shows, 4.0F);
  EXPECT_EQ(row.clicks, 0.5F);
  EXPECT_FALSE(policy.fade(row));  // 1
  EXPECT_TRUE(policy.fade(row));
}

TEST(Eviction, BytesAreOfAllServers) {
  const EvictionPolicy policy(table_with({.max_bytes = 320'000}), 2, 100);  // 1600 rows each
  EXPECT_EQ(policy.surplus(1600), 0);
  EXPECT_EQ(policy.surplus(1601), 101);
  const EvictionPolicy tiny(table_with({.max_bytes = 1}), 1, 100);
  EXPECT_EQ(tiny.surplus(1), 0);
  EXPECT_EQ(tiny.surplus(2), 1);
}

TEST(Eviction, TheLeastRecentGoAsManyAsMust) {
  std::vector<RowHistory> rows;
  for (std::int64_t i = 0; i < 100; ++i) rows.push_back({.last_step = (i * 7) % 10});
  LeastRecent least(25);
  for (const RowHistory& row : rows) least.count(row);
  std::vector<std::int64_t> gone(10);
  for (const RowHistory& row : rows) {
    if (least.goes(row)) ++gone[static_cast<std::size_t>(row.last_step)];
  }
  EXPECT_EQ(gone, (std::vector<std::int64_t>{10, 10, 5, 0, 0, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace tutti::ps
