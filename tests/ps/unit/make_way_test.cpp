// Pushes that bring more rows than Eviction::max_bytes has place for: which rows go for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <variant>
#include <vector>

#include "ps/table/eviction.hpp"
#include "ps/table/place.hpp"
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

/** `each` of every shard of one server, none of which `used` has: those get a number more. */
Ids ids_of_every_shard(std::int64_t each, std::int64_t& used) {
  std::vector<std::int64_t> counts(Table::kShards);
  Ids ids;
  while (std::ssize(ids) < each * Table::kShards) {
    const std::int64_t id = used++;
    std::int64_t& count =
        counts[static_cast<std::size_t>(shard_of(place_of(id, Split::hash, 1).within))];
    if (count == each) continue;
    ++count;
    ids.push_back(id);
  }
  return ids;
}

std::vector<std::int64_t> rows_by_shard(const Table& table) {
  std::vector<std::int64_t> counts(Table::kShards);
  for (int shard = 0; shard < Table::kShards; ++shard) {
    table.for_each_row(shard, [&](const StoredRow&) { ++counts[static_cast<std::size_t>(shard)]; });
  }
  return counts;
}

std::vector<StoredRow> all_rows(const Table& table) {
  return table.rows_between(0, ~std::uint64_t{0});
}

/** Each table has the same pushes; what the policy says by itself is what shards have then. */
TEST(MakingWay, ShardsOfALargeTableTakeTurnsAlsoAfterALoad) {
  TableIdentity identity{
      .spec = {.name = "items", .dim = 1, .rule = Sgd{.lr = 1.0F}, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_bytes = 32 << 20;
  const EvictionPolicy policy(identity.spec, most_rows(identity));
  ASSERT_TRUE(policy.by_shards());
  const std::int64_t share = most_rows(identity) / Table::kShards;
  const std::int64_t begin = share - share / 32;
  std::int64_t used = 0;
  Table table(identity, "");
  Table loaded(identity, "");
  const Ids first = ids_of_every_shard(begin, used);
  Ids touched;  // of those whose turn comes after that
  std::ranges::copy_if(first, std::back_inserter(touched), [](std::int64_t id) {
    return id % 2 == 0 && shard_of(place_of(id, Split::hash, 1).within) % 16 > 7;
  });
  push_ones(table, first);

  std::vector<std::int64_t> expected(Table::kShards, begin);
  for (std::int64_t step = 1; step <= 20; ++step) {
    const Ids fresh = ids_of_every_shard(1, used);
    push_ones(table, fresh);
    if (step > 7) push_ones(loaded, fresh);
    if (step == 3) push_ones(table, touched);
    table.step();
    if (step > 7) loaded.step();
    for (int shard = 0; shard < Table::kShards; ++shard) {
      std::int64_t& rows = expected[static_cast<std::size_t>(shard)];
      rows += 1 - policy.surplus_of(shard, rows + 1, step - 1);
      rows -= policy.surplus_of(shard, rows, step);
    }
    ASSERT_EQ(rows_by_shard(table), expected) << step;
    if (step == 7) {
      loaded.set_steps(table.steps());
      loaded.restore(all_rows(table));
    }
  }
  EXPECT_EQ(updated(table, touched, 2), std::ssize(touched)) << "the least recent go";
  EXPECT_GT(table.stats().evicted, 0);
  EXPECT_TRUE(
      std::ranges::equal(all_rows(table), all_rows(loaded), {}, &StoredRow::id, &StoredRow::id));
}

}  // namespace
}  // namespace tutti::ps::make_way_test
