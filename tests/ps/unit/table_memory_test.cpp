// Memory of tables: what they take, what happens when there is no more, and rows that go again.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/page_size.hpp"
#include "own_mounts.hpp"
#include "ps/table/arena.hpp"
#include "ps/table/table.hpp"
#include "support/thrown.hpp"
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

constexpr int kNotMade = 77;

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
    // Of rows whose weights alone fill it a table knows how many that are.
    const std::string reason = dim == 300 ? "are the most that fit" : "bytes free";
    if (text.find(reason) == std::string::npos) return "no sizes: " + text;
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

/** The number after a word that begins a line of a file, behind the line that begins with `after`;
 * -1 if there is none. */
std::int64_t number_in(const char* file, const std::string& after, const std::string& word) {
  std::ifstream lines(file);
  std::string line;
  while (!after.empty() && std::getline(lines, line) && !line.starts_with(after)) {
  }
  while (std::getline(lines, line)) {
    if (line.starts_with(word)) return std::stoll(line.substr(word.size()));
  }
  return -1;
}

/** Kibibytes of a mapping in huge pages of shared memory. */
std::int64_t huge_kibis(const void* address) {
  std::ostringstream range;
  range << std::hex << reinterpret_cast<std::uintptr_t>(address) << '-';
  return number_in("/proc/self/smaps", range.str(), "ShmemPmdMapped:");
}

/** Private memory that this process has. */
std::int64_t private_bytes() { return 1024 * number_in("/proc/self/status", "", "RssAnon:"); }

/** Makes memory here, which another process then reads: one that has not inherited its mapping.
 * Says with what status that has ended. */
int read_elsewhere(const std::function<void()>& make, const std::function<int()>& read) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t reader = ::fork();
  if (reader == 0) {
    char word = 0;
    ::close(ends[1]);
    std::_Exit(::read(ends[0], &word, 1) == 1 ? read() : kNotMade);
  }
  make();
  int status = ::write(ends[1], "x", 1) == 1 ? 0 : -1;
  ::close(ends[0]);
  ::close(ends[1]);
  ::waitpid(reader, &status, 0);
  return status;
}

TEST(TableMemory, LiesInHugePagesForItsReadersToo) {
  const std::string segment = new_segment();
  std::unique_ptr<Arena> arena;
  const auto make = [&] {
    arena = std::make_unique<Arena>(segment, 64 * kHugePage);
    arena->take(3 * kHugePage + page_size(), 3 * kHugePage);
  };
  const auto read = [&] {
    const Arena reader(segment);
    std::int64_t sum = 0;
    for (std::int64_t i = 3; i < 7; ++i) {
      sum += std::to_integer<int>(static_cast<volatile std::byte&>(reader.base()[i * kHugePage]));
    }
    return sum == 0 && huge_kibis(reader.base()) == 4096 ? 0 : 1;
  };
  const int status = read_elsewhere(make, read);
  ASSERT_TRUE(arena->has_huge_pages().has_value());
  if (!arena->has_huge_pages().value()) GTEST_SKIP() << "the kernel gives none";
  EXPECT_EQ(huge_kibis(arena->base()), 4096);
  EXPECT_EQ(status, 0);
}

TEST(TableMemory, CannotBeWrittenByReaders) {
  const std::string segment = new_segment();
  std::unique_ptr<Arena> arena;
  const auto make = [&] {
    arena = std::make_unique<Arena>(segment, kHugePage);
    arena->take(0, kHugePage);
    arena->base()[7] = std::byte{7};
  };
  const auto write = [&] {
    const Arena reader(segment);
    if (reader.base()[7] != std::byte{7}) return 2;
    std::signal(SIGSEGV, [](int /*signal*/) { std::_Exit(0); });
    reader.base()[7] = std::byte{8};
    return 1;
  };
  EXPECT_EQ(read_elsewhere(make, write), 0);
  EXPECT_EQ(arena->base()[7], std::byte{7});
}

TEST(TableMemory, ForkedChildrenDoNotGetTheStateOfSharedTables) {
  Table table({.spec = {.name = "items", .dim = 256, .rule = Adam{}}}, new_segment());
  constexpr std::int64_t kRows = 20'000;
  const auto bytes_before = private_bytes();
  push(table, numbers(0, kRows), 1.0F);
  const auto bytes_with_state = private_bytes();
  EXPECT_GT(bytes_with_state - bytes_before, kRows * 2'000) << "state is private";
  check_in_process([&] {
    return bytes_with_state - private_bytes() > kRows * 1'000 ? "" : "a child has the state";
  });
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
  identity.spec.eviction.max_bytes = 12 << 20;
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
      EXPECT_LE(table->stats().bytes, (12 << 20) / table->identity().servers);
    }
  }
  // Of 8 MiB of weights and history, and of 4.
  EXPECT_GT(alone.rows(), 90'000);
  EXPECT_GT(half.rows(), 30'000);
  EXPECT_TRUE(all_are(alone, numbers(0, 1'000), 0.0F)) << "the first ones are gone";
}

TEST(TableEviction, MaxBytesHoldForLargePushes) {
  for (const std::int64_t bytes : {20 << 20, 64 << 20}) {  // all rows have one share, or each shard
    TableIdentity identity{.spec = {.name = "items", .dim = 16, .initial = Constant{0.0F}}};
    identity.spec.eviction.max_bytes = bytes;
    Table table(identity, "");
    const std::int64_t rows = bytes / 350;
    for (std::int64_t step = 0; step < 12; ++step) {
      // A fourth of them was there.
      const Ids ids = numbers(step * rows * 3 / 4, step * rows * 3 / 4 + rows);
      push(table, ids, 1.0F);
      EXPECT_LE(table.stats().bytes, bytes);
      EXPECT_TRUE(all_are(table, numbers(ids.back() - rows / 2, ids.back()), 1.0F));
      table.step();
    }
    EXPECT_GT(table.rows() * 120, bytes * 3 / 4);
  }
}

TEST(TableEviction, MaxBytesThatHoldNoRowAreRefused) {
  TableIdentity identity{.spec = {.name = "items", .dim = 16}, .servers = 3};
  identity.spec.eviction.max_bytes = 10;
  const std::string text = tutti::test::text_of<InvalidArgument>([&] { Table(identity, ""); });
  EXPECT_TRUE(
      text.starts_with("table 'items': max_bytes of the eviction is 10, but must be at least "))
      << text;
  identity.spec.eviction.max_bytes = std::stoll(text.substr(text.find("least ") + 6));
  const Table least(identity, "");
  EXPECT_EQ(least.rows(), 0);
  --identity.spec.eviction.max_bytes;
  EXPECT_THROW(Table(identity, ""), InvalidArgument);
}

TEST(TableEviction, OfLargeTablesEachShardHasItsShare) {
  TableIdentity identity{.spec = {.name = "items", .dim = 1, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_bytes = 20'000'000;
  Table table(identity, "");
  std::int64_t most = 0;
  for (std::int64_t step = 0; step < 60; ++step) {
    push(table, numbers(step * 10'000, (step + 1) * 10'000), 1.0F);
    table.step();
    EXPECT_TRUE(all_are(table, numbers(step * 10'000, (step + 1) * 10'000), 1.0F));
    most = std::max(most, table.rows());
    EXPECT_LE(table.stats().bytes, 20'000'000);
  }
  EXPECT_GT(most, 262'144) << "rows enough for shards to have shares";
  EXPECT_GT(table.rows(), most * 9 / 10);
  EXPECT_TRUE(all_are(table, numbers(0, 100'000), 0.0F)) << "the first ones are gone";
}

TEST(TableEviction, RowsThatAreTooOldGoInSlices) {
  TableIdentity identity{.spec = {.name = "items", .dim = 1, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_age = 160;
  Table table(identity, "");
  push(table, numbers(0, 20'000), 1.0F);
  for (int step = 0; step < 160; ++step) table.step();
  EXPECT_EQ(table.rows(), 20'000);
  for (int step = 1; step <= 20; ++step) {
    table.step();
    EXPECT_NEAR(static_cast<double>(table.rows()), 20'000 - 1'000 * step, 400) << step;
  }
  EXPECT_EQ(table.rows(), 0);
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
