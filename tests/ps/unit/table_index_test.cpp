// Shards that share an array, and arrays that are cut in two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "ps/table/arena.hpp"
#include "ps/table/index.hpp"
#include "ps/table/place.hpp"
#include "ps/table/table.hpp"
#include "table_oracle.hpp"

namespace tutti::ps {
namespace {

using test::Floats;
using test::Ids;
using test::new_segment;

TableIdentity small_rows() {
  return {.spec = {.name = "items", .dim = 1, .initial = Constant{0.0F}}};
}

int shard_of_id(std::int64_t id) { return shard_of(place_of(id, Split::hash, 1).within); }

/** So many ids of those shards, from `from` on. */
Ids ids_of(int first_shard, int last_shard, std::size_t count, std::int64_t from = 0) {
  Ids ids;
  for (std::int64_t id = from; ids.size() < count; ++id) {
    const int shard = shard_of_id(id);
    if (shard >= first_shard && shard <= last_shard) ids.push_back(id);
  }
  return ids;
}

void push(Table& table, const Ids& ids) {
  const Floats ones(ids.size(), 1.0F);
  table.add({.ids = ids, .values = ones.data()});
}

void expect_rows(const Table& table, const Ids& ids) {
  Floats rows(ids.size());
  ASSERT_EQ(table.lookup(ids, {}, rows.data()), 0);
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), [](float row) { return row == 1.0F; }));
  std::int64_t visited = 0;
  for (int shard = 0; shard < Table::kShards; ++shard) {
    std::uint64_t last = 0;
    table.for_each_row(shard, [&](const StoredRow& row) {
      const std::uint64_t within = place_of(row.id, Split::hash, 1).within;
      ASSERT_EQ(shard_of(within), shard);
      ASSERT_TRUE(within >= last);
      last = within;
      ++visited;
    });
  }
  EXPECT_EQ(visited, std::ssize(ids));
}

/** How many shards have an array together, by its first shard. */
std::map<int, int> arrays_of(const std::string& segment) {
  const Arena memory(segment);
  const Index index(memory.base(), Split::hash, 1);
  std::map<int, int> arrays;
  for (int shard = 0; shard < kIndexShards; ++shard) {
    const ShardState state = index.state(shard);
    arrays[state.first_shard(shard)] = state.shards();
    EXPECT_EQ(index.state(state.first_shard(shard)), state);
  }
  return arrays;
}

TEST(TableIndex, NeighbouringShardsShareArraysWhichAreNotWrittenAnewTogether) {
  const std::string segment = new_segment();
  Table table(small_rows(), segment);
  const Ids ids = ids_of(0, 255, 100'000);
  push(table, ids);
  expect_rows(table, ids);
  EXPECT_EQ(arrays_of(segment).size(), 16U);
  const Arena memory(segment);
  const Index index(memory.base(), Split::hash, 1);
  std::set<std::uint32_t> lines;
  for (int shard = 0; shard < kIndexShards; shard += 16) lines.insert(index.state(shard).lines);
  EXPECT_GT(lines.size(), 4U) << "they are full at different times";
}

TEST(TableIndex, ShardsThatAreFilledOneAfterTheOtherGetArraysOfTheirOwn) {
  const std::string segment = new_segment();
  Table table(small_rows(), segment);
  Ids all;
  for (const int shard : {3, 2, 0, 200}) {
    const Ids ids = ids_of(shard, shard, 5'000);
    push(table, ids);
    all.insert(all.end(), ids.begin(), ids.end());
    expect_rows(table, all);
  }
  const std::map<int, int> arrays = arrays_of(segment);
  for (const int shard : {3, 2, 0, 200}) EXPECT_EQ(arrays.at(shard), 1) << shard;
  const Ids more = ids_of(0, 255, 100'000, 10'000'000);
  push(table, more);
  all.insert(all.end(), more.begin(), more.end());
  expect_rows(table, all);
}

TEST(TableIndex, RowsThatWereExpectedComeInAnyOrder) {
  const std::string segment = new_segment();
  Table table(small_rows(), segment);
  table.expect(256'000);
  Ids all;
  for (int shard = 0; shard < kIndexShards; shard += 5) {
    const Ids ids = ids_of(shard, shard, 1'000);
    push(table, ids);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  expect_rows(table, all);
  EXPECT_EQ(arrays_of(segment).size(), 16U);
  const Arena memory(segment);
  EXPECT_EQ(Index(memory.base(), Split::hash, 1).state(0).generation, 1U) << "never written anew";
}

TEST(TableIndex, LargeArraysAreCutInTwo) {
  const std::string segment = new_segment();
  Table table(small_rows(), segment);
  const Ids ids = ids_of(16, 31, 800'000);
  for (auto part = ids.begin(); part != ids.end(); part += 50'000) {
    push(table, Ids(part, part + 50'000));
  }
  expect_rows(table, ids);
  const std::map<int, int> arrays = arrays_of(segment);
  EXPECT_EQ(arrays.at(16), 8);
  EXPECT_EQ(arrays.at(24), 8);
  EXPECT_EQ(arrays.at(0), 16);
}

}  // namespace
}  // namespace tutti::ps
