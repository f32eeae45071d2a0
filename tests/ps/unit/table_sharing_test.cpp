// Readers in other threads and processes beside the one who changes a table: no wrong row, no row
// that is not whole where that was asked for, and nobody who is held up.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ps/table/arena.hpp"
#include "ps/table/index.hpp"
#include "ps/table/row_reader.hpp"
#include "ps/table/table.hpp"
#include "table_oracle.hpp"

namespace tutti::ps {
namespace {

using test::Floats;
using test::Ids;
using test::new_segment;

/** What a test's writer and its reader tell each other. */
struct Progress {
  std::atomic<std::int64_t> ids{0};    ///< that have been pushed
  std::atomic<std::int64_t> looks{0};  ///< that the reader has made
  std::atomic<bool> is_over{false};
  std::atomic<bool> was_wrong{false};
};

class SharedProgress {
 public:
  SharedProgress() {
    void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    progress_ = new (memory) Progress;
  }
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  ~SharedProgress() { ::munmap(progress_, sizeof(Progress)); }
  Progress* operator->() const { return progress_; }

  /** Until the reader has begun. */
  void wait_for_looks(std::int64_t looks) const {
    while (progress_->looks < looks) std::this_thread::yield();
  }

 private:
  Progress* progress_;
};

/** Calls look() until the writer is done; the first that returns false is the last. */
void keep_looking(const SharedProgress& progress, const std::function<bool()>& look) {
  while (!progress->is_over) {
    if (!look()) progress->was_wrong = true;
    ++progress->looks;
  }
}

enum class Where { thread, process };

/** Runs `read` in another thread or process, and `write` here. */
void run_beside(Where where, const SharedProgress& progress, const std::function<void()>& read,
                const std::function<void()>& write) {
  const auto written = [&] {
    progress.wait_for_looks(10);
    write();
    progress.wait_for_looks(progress->looks + 10);
    progress->is_over = true;
  };
  if (where == Where::thread) {
    std::thread reader(read);
    written();
    reader.join();
    return;
  }
  const pid_t reader = ::fork();
  if (reader == 0) {
    read();
    std::_Exit(0);
  }
  written();
  int status = 0;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

std::int64_t id_of(std::int64_t number) { return number * 7'919 - 1'000; }
float value_of(std::int64_t number) { return static_cast<float>(1 + number % 1'000'000); }

/** Gives rows from..to the value that they keep. */
void push_numbers(Table& table, std::int64_t from, std::int64_t to) {
  const auto dim = static_cast<std::size_t>(table.identity().spec.dim);
  Ids ids;
  Floats values;
  for (std::int64_t number = from; number < to; ++number) {
    ids.push_back(id_of(number));
    values.insert(values.end(), dim, value_of(number));
  }
  table.add({.ids = ids, .values = values.data()});
}

class Sharing : public testing::TestWithParam<Where> {};

TEST_P(Sharing, RowsAreFoundWhileShardsGrow) {
  const TableIdentity identity{.spec = {.name = "items", .dim = 3, .initial = Constant{0.0F}}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  const SharedProgress progress;
  push_numbers(table, 0, 1);
  progress->ids = 1;
  run_beside(
      GetParam(), progress,
      [&] {
        const TableReader reader(identity, segment);
        std::mt19937_64 random(1);
        Ids numbers(100);
        Ids ids(100);
        Floats rows(300);
        keep_looking(progress, [&] {
          const auto known = static_cast<std::uint64_t>(progress->ids);
          for (std::size_t i = 0; i < ids.size(); ++i) {
            numbers[i] = static_cast<std::int64_t>(random() % known);
            ids[i] = id_of(numbers[i]);
          }
          reader.lookup(ids, {}, rows.data());
          for (std::size_t i = 0; i < rows.size(); ++i) {
            if (rows[i] != value_of(numbers[i / 3])) return false;
          }
          return true;
        });
      },
      [&] {
        for (std::int64_t ids = 1; ids < 200'000; ids = progress->ids) {
          push_numbers(table, ids, ids + std::min<std::int64_t>(ids, 500));
          progress->ids = ids + std::min<std::int64_t>(ids, 500);
        }
      });
  EXPECT_FALSE(progress->was_wrong);
}

/** Rows that go from one value to another whose bytes all differ, and back, by one push each. */
void read_beside_pushes(Where where, bool consistent) {
  constexpr std::int64_t kDim = 64;
  constexpr float kOne = 1.0F;                   // 0x3F800000
  constexpr float kOther = -1.999999761581421F;  // 0xBFFFFFFE
  const TableIdentity identity{.spec = {.name = "items",
                                        .dim = kDim,
                                        .rule = Sgd{1.0F},
                                        .initial = Constant{kOne},
                                        .consistent_rows = consistent}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  const SharedProgress progress;
  std::atomic<std::int64_t>& whole = progress->ids;
  run_beside(
      where, progress,
      [&] {
        const TableReader reader(identity, segment);
        std::int64_t id = 0;
        Floats row(kDim);
        keep_looking(progress, [&] {
          id = (id + 1) % 4;
          if (reader.lookup({&id, 1}, {}, row.data()) != 0) return consistent;
          ++whole;
          return std::all_of(row.begin(), row.end(), [&](float element) {
            if (consistent) return element == row[0];
            return element == kOne || element == kOther;
          });
        });
      },
      [&] {
        const Floats there(5 * kDim, kOne - kOther);
        const Floats back(5 * kDim, kOther - kOne);
        for (int push = 0; push < 30'000; ++push) {
          // New ids meanwhile: slots move to larger arrays.
          const Ids ids{0, 1, 2, 3, 100 + push / 4};
          table.update({.ids = ids, .values = (push % 2 == 0 ? there : back).data()});
        }
      });
  EXPECT_FALSE(progress->was_wrong);
  EXPECT_GT(whole, 0);
}

TEST_P(Sharing, ConsistentRowsAreWhole) { read_beside_pushes(GetParam(), true); }
TEST_P(Sharing, ElementsAreWholeInAnyTable) { read_beside_pushes(GetParam(), false); }

TEST_P(Sharing, EvictedRowsAreNotTakenForThoseThatHaveTheirPlaceNow) {
  TableIdentity identity{.spec = {.name = "items", .dim = 16, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_age = 1;
  const std::string segment = new_segment();
  Table table(identity, segment);
  const SharedProgress progress;
  std::atomic<std::int64_t>& found = progress->ids;
  constexpr std::int64_t kIds = 64;
  run_beside(
      GetParam(), progress,
      [&] {
        const TableReader reader(identity, segment);
        std::int64_t number = 0;
        Floats row(16);
        keep_looking(progress, [&] {
          number = (number + 1) % kIds;
          const std::int64_t id = id_of(number);
          if (reader.lookup({&id, 1}, {}, row.data()) != 0) return false;
          if (row[0] == value_of(number)) ++found;
          return std::all_of(row.begin(), row.end(), [&](float element) {
            return element == 0.0F || element == value_of(number);
          });
        });
      },
      [&] {
        for (int step = 0; step < 5'000; ++step) {
          const std::int64_t first = std::int64_t{step} * 4 % kIds;
          push_numbers(table, first, first + 4);
          table.step();
        }
      });
  EXPECT_FALSE(progress->was_wrong);
  EXPECT_GT(found, 0);
  EXPECT_GT(table.stats().evicted, 10'000);
}

INSTANTIATE_TEST_SUITE_P(, Sharing, testing::Values(Where::thread, Where::process),
                         [](const auto& where) {
                           return where.param == Where::thread ? "Thread" : "Process";
                         });

/** Searches one id in the memory of a table, as a reader begins to. */
class Look {
 public:
  Look(const std::string& segment, std::int64_t id)
      : memory_(segment),
        index_(memory_.base(), Split::hash, 1),
        within_(index_.within(id)),
        lines_(index_.lines(shard_of(within_))),
        found_(Index::search(lines_, lines_.home(within_), id)) {}

  Slot& slot() const { return *found_.slot; }
  bool array_is_old() const { return index_.state(shard_of(within_)) != lines_.state; }
  bool slot_is_old() const { return found_.slot->word != found_.word; }

 private:
  Arena memory_;
  Index index_;
  std::uint64_t within_;
  Lines lines_;
  Index::Found found_;
};

TEST(TableReaders, SeeThatWhatTheyLookAtHasBecomeOld) {
  TableIdentity identity{.spec = {.name = "items", .dim = 2, .initial = Constant{0.0F}}};
  identity.spec.eviction.max_age = 1;
  const std::string segment = new_segment();
  Table table(identity, segment);
  push_numbers(table, 0, 1);
  {
    const Look look(segment, id_of(0));
    EXPECT_FALSE(look.array_is_old());
    push_numbers(table, 1, 100'000);  // all shards grow
    EXPECT_TRUE(look.array_is_old());
  }
  const Look look(segment, id_of(0));
  EXPECT_FALSE(look.slot_is_old());
  table.step();
  table.step();
  EXPECT_EQ(table.rows(), 0);
  EXPECT_TRUE(look.slot_is_old());
}

TEST(TableReaders, DoNotTakeTheIdThatAnArraysPlaceHasNext) {
  const TableIdentity identity{.spec = {.name = "items", .dim = 2, .initial = Constant{0.0F}}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  push_numbers(table, 0, 10'000);
  Arena memory(segment);
  const Index index(memory.base(), Split::hash, 1);
  const RowReader reader(identity, memory.base());
  std::vector<IndexResult> results;
  for (std::int64_t number = 0; number < 10'000; ++number) {
    const std::uint64_t within = index.within(id_of(number));
    const Lines lines = index.lines(shard_of(within));
    results.push_back(
        {Index::search(lines, lines.home(within), id_of(number)), lines.state, shard_of(within)});
    Floats row(2);
    ASSERT_TRUE(reader.copy(results.back(), row.data()));
  }
  // Readers that have found their id, and go on when its array has been written anew twice.
  std::int64_t ids = 10'000;
  const auto generation_of = [&](const IndexResult& result) {
    return index.state(result.shard).generation - result.state.generation;
  };
  int others = 0;
  for (; others == 0 && ids < 100'000; ids += 100) {
    push_numbers(table, ids, ids + 100);
    for (std::size_t i = 0; i < results.size(); ++i) {
      IndexResult late = results[i];
      if (generation_of(late) != 2) continue;
      late.found.word = late.found.slot->word;
      if (!has_row(late.found.word) || late.found.slot->id == id_of(static_cast<std::int64_t>(i))) {
        continue;
      }
      ++others;
      Floats row(2);
      ASSERT_FALSE(reader.copy(late, row.data())) << "a row of another id";
    }
  }
  EXPECT_GT(others, 0);
}

TEST(TableReaders, WaitForAWriterThatWasInterruptedInTheMiddle) {
  const TableIdentity identity{
      .spec = {.name = "items", .dim = 2, .initial = Constant{1.0F}, .consistent_rows = true}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  const std::int64_t id = 1;
  const Floats zeros(2);
  table.update({.ids = {&id, 1}, .values = zeros.data()});
  const TableReader reader(identity, segment);
  const Look look(segment, id);
  // Once is enough: on a busy machine the writer may be interrupted for longer.
  bool was_whole = false;
  for (int attempt = 0; attempt < 200 && !was_whole; ++attempt) {
    std::atomic<bool> has_begun{false};
    std::thread writer([&] {
      look.slot().word += kVersion;
      has_begun = true;
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
      while (std::chrono::steady_clock::now() < end) {
      }
      look.slot().word += kVersion;
    });
    while (!has_begun) {
    }
    Floats row(2);
    was_whole =
        look.slot().word / kVersion % 2 != 0 && reader.lookup({&id, 1}, {}, row.data()) == 0;
    writer.join();
  }
  EXPECT_TRUE(was_whole);
}

TEST(TableReaders, GiveUpOnARowWhoseServerDiedInTheMiddle) {
  const TableIdentity identity{
      .spec = {.name = "items", .dim = 2, .initial = Constant{1.0F}, .consistent_rows = true}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  const Ids ids{1, 2, 3};
  const Floats zeros(6);
  table.update({.ids = ids, .values = zeros.data()});
  Look(segment, 2).slot().word += kVersion;  // now it is odd, and stays so
  const TableReader reader(identity, segment);
  Floats rows(6);
  EXPECT_EQ(reader.lookup(ids, {}, rows.data()), 1);
  EXPECT_EQ(rows, Floats(6, 1.0F));
}

TEST(TableReaders, ThatAreKilledHoldNobodyUp) {
  const TableIdentity identity{.spec = {.name = "items", .dim = 3, .initial = Constant{0.0F}}};
  const std::string segment = new_segment();
  Table table(identity, segment);
  const SharedProgress progress;
  push_numbers(table, 0, 1'000);
  const pid_t child = ::fork();
  if (child == 0) {
    const TableReader reader(identity, segment);
    Ids ids(1'000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = id_of(static_cast<std::int64_t>(i));
    Floats rows(3'000);
    keep_looking(progress, [&] { return reader.lookup(ids, {}, rows.data()) == 0; });
    std::_Exit(0);
  }
  progress.wait_for_looks(100);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  push_numbers(table, 1'000, 50'000);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  push_numbers(table, 50'000, 100'000);
  const TableReader reader(identity, segment);
  for (std::int64_t number = 0; number < 100'000; number += 99) {
    const std::int64_t id = id_of(number);
    Floats row(3);
    ASSERT_EQ(reader.lookup({&id, 1}, {}, row.data()), 0);
    ASSERT_EQ(row, Floats(3, value_of(number)));
  }
}

}  // namespace
}  // namespace tutti::ps
