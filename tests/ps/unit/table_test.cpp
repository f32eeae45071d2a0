// A table against a map of rows: pushes, look-ups, files, at awkward sizes and with any ids.
#include "ps/table/table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "table_oracle.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

using test::Floats;
using test::Ids;
using test::new_segment;
using test::TableOracle;

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::vector<Rule> rules() {
  return {Sgd{0.1F}, Momentum{0.1F, 0.9F, true}, Adagrad{0.1F}, Adagrad{0.1F, 1e-10F, 0.25F, true},
          Adam{0.1F}};
}

/** Distinct ids of which many come again in the next push. */
Ids draw_ids(std::mt19937& random, std::int64_t kinds, std::size_t count) {
  std::set<std::int64_t> ids{0, -1, kLeast, kMost};
  std::uniform_int_distribution<std::int64_t> any(-kinds, kinds);
  while (ids.size() < count) ids.insert(any(random) * 1'000'003);
  Ids result(ids.begin(), ids.end());
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

Floats draw_values(std::mt19937& random, std::size_t count) {
  std::uniform_real_distribution<float> any(-1.0F, 1.0F);
  Floats result(count);
  for (float& value : result) value = any(random);
  return result;
}

Floats look_up(const Table& table, const Ids& ids) {
  Floats out(ids.size() * static_cast<std::size_t>(table.identity().spec.dim), -7.0F);
  EXPECT_EQ(table.lookup(ids, {}, out.data()), 0);
  return out;
}

TEST(Table, DoesWhatAMapOfRowsDoes) {
  std::mt19937 random(1);
  for (const std::int64_t dim : {1, 3, 15, 16, 17, 64}) {
    for (const Rule& rule : rules()) {
      TableIdentity identity{.spec = {.name = "items", .dim = dim, .rule = rule}, .seed = 5};
      identity.spec.padding_idx = -1;
      identity.spec.consistent_rows = dim % 2 == 0;
      const std::string segment = dim % 3 == 0 ? new_segment() : "";
      Table table(identity, segment);
      TableOracle oracle(identity);
      for (int push = 0; push < 6; ++push) {
        const Ids ids = draw_ids(random, 2'000, 700);
        const Floats values = draw_values(random, ids.size() * static_cast<std::size_t>(dim));
        if (push == 3) {
          table.add({.ids = ids, .values = values.data(), .scale = 0.5F});
          oracle.add(ids, values, 0.5F);
        } else {
          table.update({.ids = ids, .values = values.data(), .scale = 0.25F});
          oracle.update(ids, values, 0.25F);
        }
        const Ids asked = draw_ids(random, 3'000, 900);
        ASSERT_EQ(look_up(table, asked), oracle.rows(asked)) << dim << ", rule " << rule.index();
        if (!segment.empty()) {
          const TableReader reader(identity, segment);
          Floats out(asked.size() * static_cast<std::size_t>(dim));
          reader.prefetch(asked);
          ASSERT_EQ(reader.lookup(asked, {}, out.data()), 0);
          ASSERT_EQ(out, oracle.rows(asked));
        }
      }
      EXPECT_EQ(table.rows(), static_cast<std::int64_t>(oracle.size()));
      EXPECT_EQ(table.stats().created, table.rows());
    }
  }
}

TEST(Table, ReadsWhatIsAskedToWhereItIsAsked) {
  Table table({.spec = {.name = "items", .dim = 3, .initial = Constant{2.0F}}}, "");
  const Ids one{7};
  const Floats gradient{100.0F, 200.0F, 300.0F};
  table.update({.ids = one, .values = gradient.data()});
  const Ids ids{7, 8, 7};
  const Ids positions{3, 0, 1};
  Floats out(12, -1.0F);
  EXPECT_EQ(table.lookup(ids, positions, out.data()), 0);
  EXPECT_EQ(out, (Floats{2, 2, 2, 1, 0, -1, -1, -1, -1, 1, 0, -1}));
  EXPECT_EQ(table.lookup({}, {}, nullptr), 0);
  EXPECT_EQ(table.rows(), 1) << "reading creates nothing";
}

TEST(Table, PaddingIsZeroAndNeverPushed) {
  TableIdentity identity{.spec = {.name = "items", .dim = 2, .initial = Constant{2.0F}}};
  identity.spec.padding_idx = 0;
  Table table(identity, "");
  const Ids ids{0, 1};
  const Floats ones(4, 1.0F);
  table.update({.ids = ids, .values = ones.data()});
  table.add({.ids = ids, .values = ones.data()});
  EXPECT_EQ(look_up(table, ids), (Floats{0.0F, 0.0F, 2.99F, 2.99F}));
  EXPECT_EQ(table.rows(), 1);
}

struct Stored {
  std::int64_t id;
  Floats weights;
  Floats state;
  std::int64_t last_step;
  float shows;
  float clicks;
  bool operator==(const Stored&) const = default;
};

std::vector<Stored> all_rows(const Table& table) {
  std::vector<Stored> rows;
  const TableSpec& spec = table.identity().spec;
  for (int shard = 0; shard < Table::kShards; ++shard) {
    table.for_each_row(shard, [&](const StoredRow& row) {
      rows.push_back({row.id, Floats(row.weights, row.weights + spec.dim),
                      Floats(row.state, row.state + state_floats(spec.rule, spec.dim)),
                      row.last_step, row.shows, row.clicks});
    });
  }
  return rows;
}

TEST(Table, RowsComeInAnOrderThatDependsOnNothingButWhichThereAre) {
  std::mt19937 random(2);
  Ids ids = draw_ids(random, 1'000'000, 20'000);
  const Floats values(ids.size() * 2, 1.0F);
  for (const Split split : {Split::hash, Split::mod}) {
    TableIdentity identity{.spec = {.name = "items", .dim = 2, .rule = Adam{}, .split = split},
                           .servers = 3};
    std::vector<Stored> expected;
    for (const std::size_t batch : {std::size_t{20'000}, std::size_t{999}, std::size_t{1}}) {
      std::shuffle(ids.begin(), ids.end(), random);
      Table table(identity, "");
      for (std::size_t start = 0; start < ids.size(); start += batch) {
        const auto part = std::span(ids).subspan(start, std::min(batch, ids.size() - start));
        table.update({.ids = part, .values = values.data()});
      }
      const std::vector<Stored> rows = all_rows(table);
      ASSERT_EQ(rows.size(), ids.size());
      if (expected.empty()) expected = rows;
      ASSERT_EQ(rows, expected);
      for (std::size_t i = 1; i < rows.size(); ++i) {
        ASSERT_LT(place_of(rows[i - 1].id, split, 3).within, place_of(rows[i].id, split, 3).within);
      }
    }
  }
}

TEST(Table, GoesOnFromStoredRowsToTheBit) {
  std::mt19937 random(3);
  TableIdentity identity{.spec = {.name = "items", .dim = 5, .rule = Adam{}}, .seed = 9};
  identity.spec.eviction.max_age = 100;
  Table table(identity, "");
  const Ids ids = draw_ids(random, 5'000, 3'000);
  const Floats values = draw_values(random, ids.size() * 5);
  const Floats shows = draw_values(random, ids.size());
  table.step();
  const RowUpdates updates{.ids = ids, .values = values.data(), .shows = shows.data()};
  table.update(updates);
  Table copy(identity, "");
  for (int shard = 0; shard < Table::kShards; ++shard) {
    table.for_each_row(shard, [&](const StoredRow& row) { copy.restore({&row, 1}); });
  }
  copy.set_steps(table.steps());
  EXPECT_EQ(all_rows(copy), all_rows(table));
  EXPECT_EQ(all_rows(copy).front().last_step, 1);
  for (Table* each : {&table, &copy}) {
    each->step();
    each->update(updates);
  }
  EXPECT_EQ(all_rows(copy), all_rows(table));
}

TEST(Table, AReaderWithOtherRowsIsRefused) {
  const TableIdentity identity{.spec = {.name = "items", .dim = 4}};
  const std::string segment = new_segment();
  {
    Table table(identity, segment);
    TableIdentity other = identity;
    other.spec.dim = 8;
    EXPECT_THROW(TableReader(other, segment), InvalidArgument);
    EXPECT_THROW(Table(identity, segment), SystemError) << "the name is in use";
    table.unlink();
    EXPECT_THROW(TableReader(identity, segment), SystemError);
  }
  EXPECT_THROW(TableReader(identity, segment), SystemError);
}

TEST(Table, CountsWhatItsEntryRuleRefuses) {
  Table table({.spec = {.name = "items", .dim = 1, .entry = AdmitCount{3}}}, "");
  const Ids ids{1, 2};
  const Floats values(2, 1.0F);
  table.update({.ids = ids, .values = values.data()});
  table.update({.ids = std::span(ids).first(1), .values = values.data()});
  EXPECT_EQ(table.rows(), 0);
  EXPECT_EQ(table.stats().refused, 3);
  const Floats before = look_up(table, ids);
  table.update({.ids = ids, .values = values.data()});
  EXPECT_EQ(table.rows(), 1);
  EXPECT_NE(look_up(table, ids)[0], before[0]);
  EXPECT_EQ(look_up(table, ids)[1], before[1]);
  table.add({.ids = ids, .values = values.data()});
  EXPECT_EQ(table.rows(), 2) << "what others send as it is was admitted elsewhere";
}

TEST(Table, RefusesIdsHoweverManyServersCountThem) {
  constexpr std::int64_t kIds = 2'000'000;
  constexpr std::int64_t kOfAPush = 100'000;
  const Floats values(kOfAPush, 1.0F);
  for (const int servers : {1, 3}) {
    std::vector<Table> tables;
    for (int server = 0; server < servers; ++server) {
      tables.emplace_back(
          TableIdentity{
              .spec = {.name = "items", .dim = 1, .entry = AdmitCount{2}, .dict_size = kIds},
              .server = server,
              .servers = servers},
          "");
    }
    const auto push = [&](std::int64_t first, std::int64_t count) {
      std::vector<Ids> parts(static_cast<std::size_t>(servers));
      for (std::int64_t id = first; id < first + count; ++id) {
        parts[static_cast<std::size_t>(place_of(id, Split::hash, servers).server)].push_back(id);
      }
      for (std::size_t server = 0; server < parts.size(); ++server) {
        tables[server].update({.ids = parts[server], .values = values.data()});
      }
    };
    const auto rows = [&] {
      std::int64_t sum = 0;
      for (const Table& table : tables) sum += table.rows();
      return sum;
    };
    for (std::int64_t first = 0; first < kIds; first += kOfAPush) push(first, kOfAPush);
    EXPECT_EQ(rows(), 0);
    push(kIds / 2, 1000);
    EXPECT_EQ(rows(), 1000);
    std::int64_t bytes = 0;
    for (const Table& table : tables) bytes += table.stats().bytes;
    EXPECT_LE(bytes, 30 * kIds);
  }
}

}  // namespace
}  // namespace tutti::ps
