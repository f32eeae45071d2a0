// Averages the gradients of tables of which a step touches few rows, by exchanging those alone.
#include "opt/row_tables.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/record/trace.hpp"
#include "opt/stopwatch.hpp"

namespace tutti {

RowTables::RowTables(std::shared_ptr<Communicator> communicator,
                     std::span<const ParameterRange> parameters,
                     std::span<const std::int64_t> row_elements)
    : communicator_(std::move(communicator)), arithmetic_(make_arithmetic(Stream())) {
  for (std::size_t i = 0; i < row_elements.size(); ++i) {
    if (row_elements[i] == 0) continue;
    which_.resize(parameters.size());
    which_[i] = true;
    Table& table = tables_.emplace_back();
    table.parameter = i;
    table.range = parameters[i];
    table.begin = table.range.gradient - parameters.front().gradient;
    table.width = row_elements[i];
    table.rows = table.range.count / table.width;
  }
}

RowTables::Table& RowTables::table(std::size_t parameter) {
  return *std::lower_bound(
      tables_.begin(), tables_.end(), parameter,
      [](const Table& one, std::size_t wanted) { return one.parameter < wanted; });
}

void RowTables::begin(const RowWire& wire) {
  wire_ = wire;
  for (Table& table : tables_) {
    table.own.clear();
    table.is_whole = false;
  }
}

void RowTables::begin_whole() {
  for (Table& table : tables_) table.is_clean = false;
}

void RowTables::take(std::size_t parameter, const Gradient& rows) {
  table(parameter).own.assign(static_cast<const std::int64_t*>(rows.rows.data),
                              static_cast<const float*>(rows.values.data), rows.rows.count,
                              rows.row_elements);
}

void RowTables::take_whole(std::size_t parameter) {
  Table& whole = table(parameter);
  whole.is_whole = true;
  whole.is_clean = false;
}

std::int64_t RowTables::finish(Compressor& compressor, Optimizer& optimizer,
                               StepStatistics& statistics) {
  if (tables_.empty()) return 0;
  const std::int64_t sent_before = communicator_->bytes_between();
  {
    const Stopwatch stopwatch(statistics.exchange_seconds, record::trace_of(*communicator_),
                              "exchange");
    agree_on_counts();
  }
  const auto ranks = static_cast<std::size_t>(communicator_->world_size());
  std::int64_t sent = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    row_counts_.clear();
    for (std::size_t r = 0; r < ranks; ++r) row_counts_.push_back(counts_[r * tables_.size() + i]);
    const std::int64_t all =
        std::accumulate(row_counts_.begin(), row_counts_.end(), std::int64_t{0});
    if (all == 0 && optimizer.keeps_where_zero()) continue;
    if (all >= table.rows) {
      average_whole(table, compressor, optimizer, statistics);
      sent += table.range.count;
    } else {
      average_rows(table, row_counts_, optimizer, statistics);
      sent += table.own.count() * table.width;
    }
  }
  statistics.bytes_between += communicator_->bytes_between() - sent_before;
  return sent;
}

/** A whole gradient counts as all rows, so that it travels whole. */
void RowTables::agree_on_counts() {
  own_counts_.clear();
  for (const Table& table : tables_) {
    own_counts_.push_back(table.is_whole ? table.rows : table.own.count());
  }
  counts_.resize(tables_.size() * static_cast<std::size_t>(communicator_->world_size()));
  communicator_->all_gather(std::span<const std::int64_t>(own_counts_),
                            std::span<std::int64_t>(counts_));
}

void RowTables::average_whole(Table& table, Compressor& compressor, Optimizer& optimizer,
                              StepStatistics& statistics) {
  record::Trace* const trace = record::trace_of(*communicator_);
  const BucketView bucket{table.begin, table.range.count, table.gradient(),
                          std::span(&table.range, 1)};
  {
    const Stopwatch stopwatch(statistics.encode_seconds, trace, "encode");
    if (!table.is_whole) write_own(table);
    table.is_clean = false;
    statistics.bytes_sent += compressor.encode(bucket).bytes;
  }
  {
    const Stopwatch stopwatch(statistics.exchange_seconds, trace, "exchange");
    compressor.exchange(bucket, Stream()).wait();
  }
  {
    const Stopwatch stopwatch(statistics.decode_seconds, trace, "decode");
    compressor.decode(bucket);
  }
  const Stopwatch stopwatch(statistics.update_seconds, trace, "update");
  optimizer.update(std::span(&table.range, 1));
}

void RowTables::average_rows(Table& table, std::span<const std::int64_t> counts,
                             Optimizer& optimizer, StepStatistics& statistics) {
  record::Trace* const trace = record::trace_of(*communicator_);
  {
    const Stopwatch stopwatch(statistics.exchange_seconds, trace, "exchange");
    gather(table, counts);
  }
  statistics.bytes_sent += static_cast<std::int64_t>(table.own.indices().size_bytes()) +
                           table.own.count() * table.width * size_of(wire_.dtype);
  {
    const Stopwatch stopwatch(statistics.decode_seconds, trace, "decode");
    average_gathered(table.width, statistics);
  }
  const Stopwatch stopwatch(statistics.update_seconds, trace, "update");
  update(table, optimizer);
}

/** Rank after rank, as they are to be added. */
void RowTables::gather(const Table& table, std::span<const std::int64_t> counts) {
  std::size_t all = 0;
  value_counts_.clear();
  for (const std::int64_t count : counts) {
    all += static_cast<std::size_t>(count);
    value_counts_.push_back(count * table.width);
  }
  all_indices_.resize(all);
  all_values_.resize(all * static_cast<std::size_t>(table.width));
  if (all == 0) return;
  communicator_->all_gather_v(table.own.indices(), std::span<std::int64_t>(all_indices_), counts);
  gather_values(table.own.values());
}

void RowTables::gather_values(std::span<const float> own) {
  if (wire_.dtype == DType::f32) {
    communicator_->all_gather_v(own, std::span<float>(all_values_), value_counts_);
    return;
  }
  own_packet_.resize(own.size());
  all_packets_.resize(all_values_.size());
  const auto own_count = static_cast<std::int64_t>(own.size());
  const auto all_count = static_cast<std::int64_t>(all_values_.size());
  const Piece narrow{own.data(), own_packet_.data(), own_count};
  const Piece widen{all_packets_.data(), all_values_.data(), all_count};
  const float scale = 1.0F / static_cast<float>(communicator_->world_size());
  arithmetic_->narrow(std::span(&narrow, 1), wire_.dtype, {.scale = scale, .limit = wire_.limit});
  communicator_->all_gather_v(ConstView(own_packet_.data(), own_count, wire_.dtype),
                              View(all_packets_.data(), all_count, wire_.dtype), value_counts_);
  arithmetic_->widen(std::span(&widen, 1), wire_.dtype, 1.0F, nullptr);
}

/** As the sums of whole gradients: divided at the end, or, in 16 bits, before, and rounded. */
void RowTables::average_gathered(std::int64_t width, StepStatistics& statistics) {
  sum_.assign(all_indices_.data(), all_values_.data(),
              static_cast<std::int64_t>(all_indices_.size()), width);
  if (wire_.dtype == DType::f32) {
    sum_.divide(static_cast<float>(communicator_->world_size()));
    return;
  }
  const auto count = static_cast<std::int64_t>(sum_.values().size());
  const Piece narrow{sum_.values().data(), all_packets_.data(), count};
  const Piece widen{all_packets_.data(), sum_.values().data(), count};
  arithmetic_->narrow(std::span(&narrow, 1), wire_.dtype, {});
  arithmetic_->widen(std::span(&widen, 1), wire_.dtype, 1.0F, &statistics.non_finite);
}

/** From the averaged rows: these alone, where that is the same. */
void RowTables::update(Table& table, Optimizer& optimizer) {
  const std::span<const std::int64_t> rows = sum_.indices();
  const std::int64_t width = table.width;
  ranges_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ParameterRange& range = ranges_.emplace_back(table.range);
    range.offset += rows[i] * width;
    range.count = width;
    range.parameter += rows[i] * width;
    range.gradient = sum_.row(static_cast<std::int64_t>(i));
  }
  if (optimizer.keeps_where_zero()) return optimizer.update(ranges_);
  const View whole = table.gradient();
  if (!table.is_clean) std::memset(whole.data, 0, static_cast<std::size_t>(whole.bytes()));
  auto* const elements = static_cast<float*>(whole.data);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(ranges_[i].gradient, width, elements + rows[i] * width);
  }
  table.is_clean = false;  // unless the update ends well
  optimizer.update(std::span(&table.range, 1));
  for (const std::int64_t row : rows) std::fill_n(elements + row * width, width, 0.0F);
  table.is_clean = true;
}

void RowTables::write_own(Table& table) const {
  const RowSum& own = table.own;
  write_whole(Gradient(own.indices(), own.values(), table.width), table.gradient());
}

}  // namespace tutti
