// Pushes that bring more rows than Eviction::max_bytes has place for: which rows go for them.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <variant>
#include <vector>

#include "ps/table/room.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps::make_way_test {
namespace {

using Ids = std::vector<std::int64_t>;

Ids range(std::int64_t first, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void push_ones(Table& table, const Ids& ids) {
  const std::vector<float> ones(ids.size() * static_cast<std::size_t>(table.identity().spec.dim),
                                1.0F);
  table.update({.ids = ids, .values = ones.data()});
}

/** How many of these ids have had so many updates. */
std::int64_t updated(const Table& table, const Ids& ids, int times) {
  const auto dim = static_cast<std::size_t>(table.identity().spec.dim);
  std::vector<float> rows(ids.size() * dim);
  table.lookup(ids, {}, rows.data());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    count += rows[i * dim] == -1.0F * static_cast<float>(times) ? 1 : 0;
  }
  return count;
}

/** By `dim` and `max_bytes`: all rows have one share, or each shard. */
void push_more_than_fits(std::int64_t dim, std::int64_t max_bytes, const Entry& entry) {
  TableIdentity identity{.spec = {.name = "items",
                                  .dim = dim,
                                  .rule = Sgd{.lr = 1.0F},
                                  .initial = Constant{0.0F},
                                  .entry = entry}};
  identity.spec.eviction.max_bytes = max_bytes;
  Table table(identity, "");
  const bool counts = std::holds_alternative<AdmitCount>(entry);
  const std::int64_t present = most_rows(identity) / 12 * 10;
  const std::int64_t touched = present / 2;
  const Ids old = range(0, present);
  const Ids fresh = range(present, present * 9 / 10);
  if (counts) push_ones(table, old);
  push_ones(table, old);
  if (counts) push_ones(table, fresh);
  ASSERT_EQ(table.stats().evicted, 0);
  ASSERT_EQ(table.rows(), present);
  const std::int64_t refused = table.stats().refused;

  Ids mixed = range(0, touched);
  mixed.insert(mixed.end(), fresh.begin(), fresh.end());
  push_ones(table, mixed);
  EXPECT_EQ(updated(table, range(0, touched), 2), touched) << "they go on from what they had";
  EXPECT_EQ(updated(table, fresh, 1), std::ssize(fresh));
  EXPECT_EQ(table.rows(), std::ssize(mixed));
  EXPECT_EQ(table.stats().created, present + std::ssize(fresh));
  EXPECT_EQ(table.stats().evicted, present - touched);
  EXPECT_EQ(table.stats().refused, refused);
}

TEST(MakingWay, NoRowThatIsPushedGoesForOthersOfThePush) {
  for (const Entry& entry : {Entry(AdmitAll{}), Entry(AdmitCount{2})}) {
    push_more_than_fits(1024, 12 << 20, entry);
    push_more_than_fits(1, 32 << 20, entry);
  }
}

}  // namespace
}  // namespace tutti::ps::make_way_test
