// A table of a parameter server alone: its rows are looked up by one process and updated by
// another, each alone and both at once; what memory allows; how long look-ups take while it grows,
// and how much memory it takes.
//
//   ps_table_bench [--rows 8M] [--dim 16] [--seconds 1] [--grow 64M] [--whole-rows] [--json FILE]
//
// Batches of 8192 ids at random among all rows. The limit is what processes do in the same turns
// that know where all is: they read a cache line of an array as large as the index, and read or
// change the row whose number stands there, with as much state; medians of 9 turns. While the table
// grows the same process reads as many lines of memory of its own, in turns: what it waits for
// there, the machine makes it wait for. `checked`: rows had the values that they must have. With
// --whole-rows the table has consistent rows. --grow 0 leaves growth out.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/refuse.hpp"
#include "comm/shm/memory/segment.hpp"
#include "ps/bare_rows.hpp"
#include "ps/beside.hpp"
#include "ps/pauses.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"
#include "ps/table_report.hpp"
#include "ps/turns.hpp"
#include "support/numbers.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace {

using tutti::bench::BareReader;
using tutti::bench::BareRows;
using tutti::bench::median;
using tutti::bench::Neighbour;
using tutti::bench::PauseClock;
using tutti::bench::Pauses;
using tutti::bench::Report;
using tutti::ps::Adagrad;
using tutti::ps::Adam;
using tutti::ps::Constant;
using tutti::ps::mix64;
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

  TableReader reader() const { return {identity_, segment_}; }
  Table& table() { return table_; }
  const TableIdentity& identity() const { return identity_; }

 private:
  const Load& load_;
  TableIdentity identity_;
  std::string segment_;
  Table table_;
  std::size_t pushed_ = 0;
};

/** What this process and its neighbour do alone and beside each other, in turns: the machine's
 * memory is fast in one moment and slow in the next, for the table and for bare rows. */
struct Measured {
  static constexpr int kTurns = 9;
  std::vector<double> updates, updates_beside, updates_of_alone;
  std::vector<double> look_ups, look_ups_beside, look_ups_of_alone;

  /** update() returns its rate. */
  void take_turn(Neighbour& neighbour, std::size_t look_up, double seconds,
                 const std::function<double()>& update) {
    const auto pause = static_cast<unsigned>(seconds * 1e6);
    look_ups.push_back(neighbour.beside(look_up, [&] { ::usleep(pause); }));
    updates.push_back(update());
    double rate = 0;
    look_ups_beside.push_back(neighbour.beside(look_up, [&] { rate = update(); }));
    updates_beside.push_back(rate);
    updates_of_alone.push_back(rate / updates.back());
    look_ups_of_alone.push_back(look_ups_beside.back() / look_ups.back());
  }
};

void measure_rule(const Load& load, const std::string& name, const Rule& rule, const Walk& walk,
                  const Walk& other, Report& report) {
  const auto dim = static_cast<std::size_t>(load.dim);
  const std::int64_t state = state_floats(rule, load.dim);
  TableBench bench(load, rule);
  bench.fill(load.rows);
  const BareRows bare(static_cast<std::size_t>(load.rows), dim, static_cast<std::size_t>(state));
  Neighbour neighbour(kBatch, [&] {
    auto reader = std::make_shared<TableReader>(bench.reader());
    auto out = std::make_shared<Floats>(kBatch * dim);
    for (std::size_t i = 0; i < walk.batches(); ++i) reader->lookup(walk.ids(i), {}, out->data());
    return std::vector<Neighbour::Call>{
        [=, &walk](std::size_t i) { reader->lookup(walk.ids(i), {}, out->data()); },
        [=, &walk, &bare](std::size_t i) { bare.read(walk.rows(i), out->data()); }};
  });
  bench.update(other, 0.5);
  Measured own;
  Measured limit;
  const double seconds = load.seconds / Measured::kTurns;
  std::size_t batch = 0;
  for (int turn = 0; turn < Measured::kTurns; ++turn) {
    own.take_turn(neighbour, 0, seconds, [&] { return bench.update(other, seconds); });
    limit.take_turn(neighbour, 1, seconds, [&] {
      return rate_of(seconds, kBatch, batch,
                     [&](std::size_t i) { bare.change(other.rows(i), 0.5F); });
    });
  }
  const bool right = bench.check_updates(other);
  report.rate("lookup_" + name, median(own.look_ups), median(limit.look_ups), right);
  report.rate("lookup_beside_" + name, median(own.look_ups_beside), median(limit.look_ups_beside),
              right);
  report.rate("update_" + name, median(own.updates), median(limit.updates), right);
  report.rate("update_" + name + "_beside", median(own.updates_beside),
              median(limit.updates_beside), right);
  report.number("lookup_beside_" + name, median(own.look_ups_of_alone), "of_alone", right);
  report.number("bare_read_beside_" + name, median(limit.look_ups_of_alone), "of_alone", right);
  report.number("update_" + name + "_beside", median(own.updates_of_alone), "of_alone", right);
  report.number("bare_change_" + name, median(limit.updates_of_alone), "of_alone", right);
  const double bytes = static_cast<double>(bench.table().stats().bytes);
  report.number("memory_" + name,
                bytes / ((23.0 + 4.0 * static_cast<double>(load.dim + state)) *
                         static_cast<double>(load.rows)),
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
      if (load.rows < 65'536) tutti::refuse(option, " has '", value, "', but must be 64K or more");
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
      measure_rule(load, "sgd", Sgd{0.25F}, walk, other, report);
      measure_rule(load, "adagrad", Adagrad{0.25F}, walk, other, report);
      measure_rule(load, "adam", Adam{0.25F}, walk, other, report);
    }
    if (load.grow > 0) measure_growth(load, shared, report);
    return report.right() ? 0 : 1;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "ps_table_bench: %s\n", error.what());
    return 2;
  }
}
