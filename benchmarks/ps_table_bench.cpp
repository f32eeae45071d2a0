// A table of a parameter server alone: its rows are looked up by one process and updated by
// another, each alone and both at once; what memory allows; how long look-ups take while it grows,
// and how much memory it takes.
//
//   ps_table_bench [--rows 8M] [--dim 16] [--seconds 1] [--grow 64M] [--whole-rows] [--json FILE]
//
// Batches of 8192 ids at random among all rows. The limit is what a process does that knows where
// all is: it reads a cache line of an array as large as the index, and the row whose number stands
// there. While the table grows the same process reads as many lines of memory of its own, in turns:
// what it waits for there, the machine makes it wait for. `checked`: rows had the values that they
// must have. With --whole-rows the table has consistent rows. --grow 0 leaves growth out.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/shm/segment.hpp"
#include "ps/beside.hpp"
#include "ps/pauses.hpp"
#include "ps/table/row_access.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"
#include "ps/table_report.hpp"
#include "support/numbers.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace {

using tutti::bench::BareReader;
using tutti::bench::PauseClock;
using tutti::bench::Pauses;
using tutti::bench::Report;
using tutti::ps::Adagrad;
using tutti::ps::Adam;
using tutti::ps::Constant;
using tutti::ps::copy_row;
using tutti::ps::mix64;
using tutti::ps::prefetch_row;
using tutti::ps::Rule;
using tutti::ps::RuleKernel;
using tutti::ps::Sgd;
using tutti::ps::state_floats;
using tutti::ps::Table;
using tutti::ps::TableIdentity;
using tutti::ps::TableReader;
using Clock = std::chrono::steady_clock;
using tutti::bench::beside;
using tutti::bench::rate_of;
using tutti::bench::Shared;
using tutti::bench::SharedPages;
using tutti::bench::since;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::size_t kBatch = 8192;

struct Load {
  std::int64_t rows = 8 << 20;
  std::int64_t dim = 16;
  double seconds = 1;
  std::int64_t grow = 64 << 20;
  bool whole_rows = false;
  std::string json;
};

std::int64_t id_of(std::int64_t row) {
  return static_cast<std::int64_t>(mix64(static_cast<std::uint64_t>(row) + 1));
}

float first_value(std::int64_t row, std::int64_t column) {
  return static_cast<float>((row + column) % 4096);
}

/** All rows once, in an order at random: batch by batch, over and over. */
class Walk {
 public:
  Walk(std::int64_t rows, std::uint64_t seed) : rows_(static_cast<std::size_t>(rows)) {
    std::iota(rows_.begin(), rows_.end(), 0);
    std::shuffle(rows_.begin(), rows_.end(), std::mt19937_64(seed));
    rows_.resize(rows_.size() / kBatch * kBatch);
    ids_.resize(rows_.size());
    std::transform(rows_.begin(), rows_.end(), ids_.begin(), id_of);
  }

  std::size_t batches() const { return rows_.size() / kBatch; }
  std::span<const std::int64_t> rows(std::size_t batch) const {
    return std::span(rows_).subspan(batch % batches() * kBatch, kBatch);
  }
  std::span<const std::int64_t> ids(std::size_t batch) const {
    return std::span(ids_).subspan(batch % batches() * kBatch, kBatch);
  }

 private:
  Ids rows_;
  Ids ids_;
};

class TableBench {
 public:
  TableBench(const Load& load, Rule rule)
      : load_(load),
        identity_{.spec = {.name = "bench",
                           .dim = load.dim,
                           .rule = rule,
                           .initial = Constant{0.0F},
                           .consistent_rows = load.whole_rows}},
        segment_(tutti::shm::segment_name(tutti::UniqueId::create(), "bench")),
        table_(identity_, segment_) {}

  /** Rows first_value() up to a number of them. */
  void fill(std::int64_t rows) {
    Ids ids;
    Floats values;
    while (table_.rows() < rows) {
      ids.clear();
      values.clear();
      const std::int64_t first = table_.rows();
      for (std::int64_t row = first; row < std::min(rows, first + 8192); ++row) {
        ids.push_back(id_of(row));
        for (std::int64_t j = 0; j < load_.dim; ++j) values.push_back(first_value(row, j));
      }
      table_.add({.ids = ids, .values = values.data()});
    }
  }

  /** Look-ups, in the process of a worker. */
  void look_up(Shared& shared, const Walk& walk) const {
    const TableReader reader(identity_, segment_);
    Floats out(kBatch * static_cast<std::size_t>(load_.dim));
    std::size_t batch = 0;
    for (std::size_t i = 0; i < walk.batches(); ++i) reader.lookup(walk.ids(i), {}, out.data());
    shared.ready = true;
    shared.rate = rate_of(load_.seconds, kBatch, batch,
                          [&](std::size_t i) { reader.lookup(walk.ids(i), {}, out.data()); });
  }

  /** Whether rows that were not updated are what they were. */
  bool check_rows(const Walk& walk) const {
    Floats out(kBatch * static_cast<std::size_t>(load_.dim));
    for (std::size_t i = 0; i < walk.batches(); ++i) {
      table_.lookup(walk.ids(i), {}, out.data());
      const auto rows = walk.rows(i);
      for (std::size_t k = 0; k < out.size(); ++k) {
        const auto j = static_cast<std::int64_t>(k) % load_.dim;
        if (out[k] != first_value(rows[k / static_cast<std::size_t>(load_.dim)], j)) return false;
      }
    }
    return true;
  }

  double update(const Walk& walk, double seconds) {
    const Floats gradient(kBatch * static_cast<std::size_t>(load_.dim), 0.5F);
    return rate_of(seconds, kBatch, pushed_, [&](std::size_t i) {
      table_.update({.ids = walk.ids(i), .values = gradient.data(), .scale = 0.5F});
    });
  }

  /** Whether rows that were pushed so many times have got there. */
  bool check_updates(const Walk& walk) const {
    const auto dim = static_cast<std::size_t>(load_.dim);
    const RuleKernel kernel(identity_.spec.rule);
    const Floats gradient(dim, 0.5F);
    Floats out(kBatch * dim);
    for (std::size_t i = 0; i < walk.batches(); i += walk.batches() / 8 + 1) {
      table_.lookup(walk.ids(i), {}, out.data());
      const std::size_t times = pushed_ / walk.batches() + (i < pushed_ % walk.batches() ? 1 : 0);
      for (std::size_t k = 0; k < kBatch; ++k) {
        Floats row(dim);
        for (std::size_t j = 0; j < dim; ++j) {
          row[j] = first_value(walk.rows(i)[k], static_cast<std::int64_t>(j));
        }
        Floats state(static_cast<std::size_t>(state_floats(identity_.spec.rule, load_.dim)));
        kernel.start(state.data(), load_.dim);
        for (std::size_t t = 0; t < times; ++t) {
          kernel.apply(row.data(), state.data(), gradient.data(), load_.dim, 0.5F);
        }
        if (!std::equal(row.begin(), row.end(), &out[k * dim])) return false;
      }
    }
    return true;
  }

  /** Look-ups of 64 ids while the table grows, and in turns bare reads of as many lines. */
  void look_up_growing(Shared& shared, Pauses& look_ups, Pauses& bare_reads) const {
    const TableReader reader(identity_, segment_);
    PauseClock of_look_ups;
    PauseClock of_bare_reads;
    BareReader bare(static_cast<std::size_t>(std::max<std::int64_t>(load_.grow, kBatch)) *
                    static_cast<std::size_t>(23 + 4 * load_.dim));
    float sum = 0;
    std::mt19937_64 random(5);
    Ids ids(64);
    Ids rows(64);
    Floats out(64 * static_cast<std::size_t>(load_.dim));
    shared.ready = true;
    while (!shared.stop) {
      const std::int64_t known = std::max<std::int64_t>(1, shared.rows);
      for (std::size_t i = 0; i < 64; ++i) {
        rows[i] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(known));
        ids[i] = id_of(rows[i]);
      }
      of_look_ups.time([&] { reader.lookup(ids, {}, out.data()); });
      of_bare_reads.time([&] { sum += bare.read(ids.size()); });
      for (std::size_t i = 0; i < 64; ++i) {
        const float expected = first_value(rows[i], 0);
        if (out[i * static_cast<std::size_t>(load_.dim)] != expected) shared.right = false;
      }
    }
    if (sum != 0) shared.right = false;  // there are but zeros
    of_look_ups.tell(look_ups);
    of_bare_reads.tell(bare_reads);
  }

  Table& table() { return table_; }
  const TableIdentity& identity() const { return identity_; }

 private:
  const Load& load_;
  TableIdentity identity_;
  std::string segment_;
  Table table_;
  std::size_t pushed_ = 0;
};

/** Two dependent cache lines for each row. */
double limit_of(const Load& load, const Walk& walk) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kAhead = 32;
  const auto rows = static_cast<std::size_t>(load.rows);
  const auto dim = static_cast<std::size_t>(load.dim);
  const SharedPages lines(rows * 22 / kLine * kLine + kLine);
  const SharedPages weights(rows * dim * sizeof(float));
  const std::size_t line_count = rows * 22 / kLine;
  auto* const numbers = lines.as<std::uint32_t>();
  for (std::size_t i = 0; i < line_count; ++i) {
    numbers[i * 16] = static_cast<std::uint32_t>(mix64(i) % rows);
  }
  std::fill_n(weights.as<float>(), rows * dim, 1.0F);
  Floats out(kBatch * dim);
  std::size_t batch = 0;
  return rate_of(load.seconds, kBatch, batch, [&](std::size_t i) {
    const auto asked = walk.rows(i);
    const auto line_of = [&](std::size_t k) {
      return static_cast<std::size_t>(asked[k]) * line_count / rows * 16;
    };
    for (std::size_t start = 0; start < kBatch; start += kAhead) {
      for (std::size_t k = start; k < start + kAhead; ++k) __builtin_prefetch(&numbers[line_of(k)]);
      for (std::size_t k = start; k < start + kAhead; ++k) {
        prefetch_row(weights.as<float>() + numbers[line_of(k)] * dim, load.dim);
      }
      for (std::size_t k = start; k < start + kAhead; ++k) {
        copy_row(weights.as<float>() + numbers[line_of(k)] * dim, &out[k * dim], load.dim);
      }
    }
  });
}

void measure_rule(const Load& load, const std::string& name, const Rule& rule, Shared& shared,
                  const Walk& walk, const Walk& other, Report& report) {
  TableBench bench(load, rule);
  bench.fill(load.rows);
  if (name == "sgd") {
    const double limit = limit_of(load, walk);
    beside(
        shared, [&] { bench.look_up(shared, walk); }, [] {});
    report.rate("lookup", shared.rate, limit, bench.check_rows(walk) && shared.right);
  }
  bench.update(other, 0.5);
  const double alone = bench.update(other, load.seconds);
  report.rate("update_" + name, alone, 0, bench.check_updates(other));
  double updates = 0;
  beside(
      shared, [&] { bench.look_up(shared, walk); },
      [&] { updates = bench.update(other, 0.9 * load.seconds); });
  report.rate("lookup_beside_" + name, shared.rate, 0, shared.right);
  report.rate("update_" + name + "_beside", updates, 0, bench.check_updates(other));
  const double floats = static_cast<double>(load.dim + state_floats(rule, load.dim));
  const double bytes = static_cast<double>(bench.table().stats().bytes);
  report.number("memory_" + name, bytes / ((23.0 + 4.0 * floats) * static_cast<double>(load.rows)),
                "of_figure", true);
}

void measure_growth(const Load& load, Shared& shared, Report& report) {
  const SharedPages page(4096);
  auto* const pauses = new (page.as<void>()) std::array<Pauses, 2>;
  TableBench bench(load, Sgd{});
  double seconds = 0;
  double most = 0;
  beside(
      shared, [&] { bench.look_up_growing(shared, pauses->front(), pauses->back()); },
      [&] {
        const auto start = Clock::now();
        for (std::int64_t rows = 1; rows < load.grow;) {
          rows = std::min(load.grow, rows + std::clamp<std::int64_t>(rows, 1, 8192));
          bench.fill(rows);
          shared.rows = rows;
          if (rows < load.grow / 8) continue;
          const double figure =
              (23.0 + 4.0 * static_cast<double>(load.dim)) * static_cast<double>(rows);
          most = std::max(most, static_cast<double>(bench.table().stats().bytes) / figure);
        }
        seconds = since(start);
      });
  report.rate("growth", static_cast<double>(load.grow) / seconds, 0, shared.right);
  report.pauses("lookup", pauses->front(), shared.right);
  report.pauses("bare_read", pauses->back(), shared.right);
  report.number("memory_growing", most, "of_figure", true);
}

Load parse(int argc, char** argv) {
  Load load;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--whole-rows") {
      load.whole_rows = true;
      continue;
    }
    if (++i == argc) throw tutti::InvalidArgument(option + " needs a value");
    const std::string value = argv[i];
    if (option == "--rows") {
      load.rows = tutti::bench::count_of(option, value);
    } else if (option == "--dim") {
      load.dim = tutti::bench::count_of(option, value);
    } else if (option == "--seconds") {
      load.seconds = tutti::bench::positive_of(option, value);
    } else if (option == "--grow") {
      load.grow = tutti::bench::count_of(option, value, 0);
    } else if (option == "--json") {
      load.json = value;
    } else {
      throw tutti::InvalidArgument("unknown option " + option);
    }
  }
  if (load.rows < 65'536 || load.dim < 1)
    throw tutti::InvalidArgument("--rows or --dim is too small");
  return load;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Load load = parse(argc, argv);
    const SharedPages page(4096);
    Shared& shared = *new (page.as<void>()) Shared;
    Report report(load.rows, load.dim, load.json);
    {
      const Walk walk(load.rows, 1);
      const Walk other(load.rows, 2);
      measure_rule(load, "sgd", Sgd{0.25F}, shared, walk, other, report);
      measure_rule(load, "adagrad", Adagrad{0.25F}, shared, walk, other, report);
      measure_rule(load, "adam", Adam{0.25F}, shared, walk, other, report);
    }
    if (load.grow > 0) measure_growth(load, shared, report);
    return report.right() ? 0 : 1;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "ps_table_bench: %s\n", error.what());
    return 2;
  }
}
