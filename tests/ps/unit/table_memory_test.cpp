// Memory of tables: what they take, what happens when there is no more, and rows that go again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "own_mounts.hpp"
#include "ps/table/arena.hpp"
#include "ps/table/table.hpp"
#include "table_oracle.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

using test::check_in_process;
using test::Floats;
using test::Ids;
using test::MemoryFigure;
using test::mount_shared_memory;
using test::new_segment;

Ids numbers(std::int64_t from, std::int64_t to) {
  Ids ids(static_cast<std::size_t>(to - from));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = from + static_cast<std::int64_t>(i);
  return ids;
}

void push(Table& table, const Ids& ids, float value) {
  const Floats values(ids.size() * static_cast<std::size_t>(table.identity().spec.dim), value);
  table.add({.ids = ids, .values = values.data()});
}

bool all_are(const Table& table, const Ids& ids, float value) {
  Floats rows(ids.size() * static_cast<std::size_t>(table.identity().spec.dim));
  table.lookup(ids, {}, rows.data());
  return std::all_of(rows.begin(), rows.end(), [&](float element) { return element == value; });
}

/** Pushes until there is no memory, where /dev/shm is small. Says what is wrong; nothing if all is
 * well. */
std::string fill_small_memory(std::int64_t dim) {
  mount_shared_memory("size=24m");
  Table table({.spec = {.name = "items", .dim = dim, .rule = Adagrad{}, .initial = Constant{0.0F}}},
              new_segment());
  constexpr std::int64_t kBatch = 3'000;
  std::int64_t pushed = 0;
  try {
    for (;; pushed += kBatch) push(table, numbers(pushed, pushed + kBatch), 1.0F);
  } catch (const SystemError& error) {
    const std::string text = error.what();
    if (text.find("bytes free") == std::string::npos) return "no sizes: " + text;
  }
  if (table.rows() != pushed) return "rows that were not pushed are there";
  if (!all_are(table, numbers(0, pushed), 1.0F)) return "rows have changed";
  if (!all_are(table, numbers(pushed, pushed + kBatch), 0.0F)) return "half a push is there";
  push(table, numbers(0, pushed), 1.0F);
  if (!all_are(table, numbers(0, pushed), 2.0F)) return "rows cannot be pushed any more";
  try {
    push(table, numbers(pushed - 10, pushed + kBatch), 1.0F);
    return "there was memory after all";
  } catch (const SystemError&) {
  }
  if (!all_are(table, numbers(pushed - 10, pushed), 2.0F)) return "a refused push was applied";
  return "";
}

TEST(TableMemory, ThatIsFullIsAnErrorAndChangesNothing) {
  for (const std::int64_t dim : {1, 16, 300}) {
    SCOPED_TRACE("dim " + std::to_string(dim));
    check_in_process([&] { return fill_small_memory(dim); });
  }
}

/** Pushes until the kernel is said to have too little memory for more. */
std::string exceed_the_machine(const std::string& segment) {
  constexpr std::int64_t kMuch = 262'144;
  const MemoryFigure memory(kMuch);
  Table table({.spec = {.name = "items", .dim = 16, .initial = Constant{0.0F}}}, segment);
  constexpr std::int64_t kBatch = 20'000;
  push(table, numbers(0, kBatch), 1.0F);
  memory.say(1'000);
  std::int64_t pushed = kBatch;
  try {
    for (; pushed < 25 * kBatch; pushed += kBatch) {
      push(table, numbers(pushed, pushed + kBatch), 1.0F);
    }
    return "more was taken than there is";
  } catch (const SystemError& error) {
    const std::string text = error.what();
    if (text.find(" 1024000 bytes") == std::string::npos) return "no sizes: " + text;
  }
  if (table.rows() != pushed) return "rows that were not pushed are there";
  if (!all_are(table, numbers(0, pushed), 1.0F)) return "rows have changed";
  memory.say(kMuch);
  push(table, numbers(pushed, pushed + kBatch), 1.0F);
  if (!all_are(table, numbers(0, pushed + kBatch), 1.0F)) return "it does not go on";
  return "";
}

TEST(TableMemory, IsNotMoreThanTheMachineHas) {
  for (const std::string& segment : {new_segment(), std::string()}) {
    SCOPED_TRACE(segment.empty() ? "private" : "shared");
    check_in_process([&] { return exceed_the_machine(segment); });
  }
}

TEST(TableMemory, NeedsNoSizeOfSharedMemory) {
  check_in_process([] {
    mount_shared_memory("size=0");
    Table table({.spec = {.name = "items", .dim = 16, .initial = Constant{0.0F}}}, new_segment());
    push(table, numbers(0, 1'000), 1.0F);
    return all_are(table, numbers(0, 1'000), 1.0F) ? "" : "rows have changed";
  });
}

TEST(TableMemory, ThatWasGivenBackHoldsZerosWhateverThePageSize) {
  Arena arena("", 1 << 16);
  arena.take(0, 1 << 16);
  std::fill_n(arena.base(), 1 << 16, std::byte{1});
  arena.give_back(512, 4096);  // pages of 64 KiB may begin and end anywhere
  EXPECT_EQ(std::count(arena.base(), arena.base() + (1 << 16), std::byte{0}), 4096);
}

TEST(TableMemory, IsWhatRowsNeedAndATenthAtMost) {
  const std::vector<std::pair<std::int64_t, Rule>> cases{
      {16, Sgd{}}, {16, Adam{}}, {33, Adagrad{}}};
  for (const auto& [dim, rule] : cases) {
    Table table({.spec = {.name = "items", .dim = dim, .rule = rule}}, "");
    const auto figure = static_cast<double>(23 + 4 * (dim + state_floats(rule, dim)));
    for (std::int64_t rows = 0; rows < 700'000;) {
      push(table, numbers(rows, rows + 25'000), 1.0F);
      rows += 25'000;
      ASSERT_EQ(table.rows(), rows);
      if (rows < 500'000) continue;
      ASSERT_LE(static_cast<double>(table.stats().bytes), 1.1 * figure * static_cast<double>(rows))
          << "dim " << dim << ", " << rows << " rows, rule " << rule.index();
    }
  }
}

TEST(TableMemory, MostIdsOfATableAreItsDictionary) {
  Table table({.spec = {.name = "items", .dim = 1, .initial = Constant{0.0F}, .dict_size = 100}},
              "");
  push(table, numbers(0, 100), 1.0F);
  EXPECT_THROW(push(table, numbers(99, 101), 1.0F), SystemError);
  EXPECT_TRUE(all_are(table, numbers(0, 100), 1.0F));
}

TEST(TableEviction, RowsThatWereNotPushedForLongGo) {
  TableIdentity identity{.spec = {.name = "items", .dim = 2, .initial = Constant{0.5F}}};
  identity.spec.eviction.max_age = 8;
  Table table(identity, "");
  push(table, numbers(0, 1'000), 1.0F);
  for (int step = 0; step < 8; ++step) {
    table.step();
    push(table, numbers(0, 10), 1.0F);
  }
  EXPECT_EQ(table.rows(), 1'000);
  table.step();
  EXPECT_EQ(table.rows(), 10);
  EXPECT_EQ(table.stats().evicted, 990);
  EXPECT_TRUE(all_are(table, numbers(0, 10), 9.5F));
  EXPECT_TRUE(all_are(table, numbers(10, 1'000), 0.5F)) << "as before their first push";
  const std::int64_t bytes = table.stats().bytes;
  push(table, numbers(10, 1'000), 1.0F);
  EXPECT_TRUE(all_are(table, numbers(10, 1'000), 1.5F)) << "and with a new state";
  EXPECT_EQ(table.rows(), 1'000);
  EXPECT_LE(table.stats().bytes, bytes + (std::int64_t{2} << 20U)) << "places are used again";
}

TEST(TableEviction, RowsThatWerePushedLeastRecentlyGoWhenThereAreTooMany) {
  TableIdentity identity{.spec = {.name = "items", .dim = 16, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_bytes = 2'000'000;
  Table alone(identity, "");
  identity.servers = 2;
  Table half(identity, "");
  for (Table* table : {&alone, &half}) {
    for (std::int64_t step = 0; step < 100; ++step) {
      Ids ids;
      for (std::int64_t id = step * 2'000; id < (step + 1) * 2'000; ++id) {
        if (place_of(id, Split::hash, table->identity().servers).server == 0) ids.push_back(id);
      }
      push(*table, ids, 1.0F);
      table->step();
      EXPECT_TRUE(all_are(*table, ids, 1.0F)) << "the last ones are there";
    }
  }
  EXPECT_GT(alone.rows(), 12'000);
  EXPECT_LT(alone.rows(), 20'000);
  EXPECT_NEAR(static_cast<double>(half.rows()), static_cast<double>(alone.rows()) / 2,
              static_cast<double>(alone.rows()) / 10);
  EXPECT_TRUE(all_are(alone, numbers(0, 1'000), 0.0F)) << "the first ones are gone";
}

TEST(TableEviction, RowsThatAreSeldomShownGo) {
  TableIdentity identity{.spec = {.name = "items", .dim = 1, .initial = Constant{0.0F}}};
  identity.spec.eviction = {.min_score = 1.0F, .decay = 0.5F, .every = 1};
  Table table(identity, "");
  const Ids ids{1, 2};
  const Floats values{1.0F, 1.0F};
  const Floats clicks{1.5F, 5.0F};
  table.update({.ids = ids, .values = values.data(), .clicks = clicks.data()});
  table.step();
  EXPECT_EQ(table.rows(), 1) << "0.75 is too little";
  table.step();
  EXPECT_EQ(table.rows(), 1);
  table.step();
  EXPECT_EQ(table.rows(), 0) << "0.625, too";
}

}  // namespace
}  // namespace tutti::ps
