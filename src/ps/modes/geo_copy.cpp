// Exchanges what a worker has learnt with what others have.
#include "ps/modes/geo_copy.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "ps/table/initial.hpp"
#include "ps/table/rules.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

std::vector<OwnBlock> own_blocks(const Servers& servers, int server) {
  std::vector<OwnBlock> blocks;
  for (const Block& block : servers.end(server).blocks)
    blocks.push_back({block, servers.rule(static_cast<int>(block.parameter))});
  return blocks;
}

TableSpec copied(const TableSpec& spec) {
  TableSpec copy = spec;
  copy.consistent_rows = false;
  return copy;
}

TableSpec snapshot_of(const TableSpec& spec) {
  TableSpec snapshot = copied(spec);
  snapshot.rule = Sgd{};
  return snapshot;
}

std::vector<float> rows_of(const Table& table, std::span<const std::int64_t> ids) {
  std::vector<float> rows(ids.size() * static_cast<std::size_t>(table.identity().spec.dim));
  table.lookup(ids, {}, rows.data());
  return rows;
}

void set_rows(Table& table, std::span<const std::int64_t> ids, const std::vector<float>& rows) {
  const TableSpec& spec = table.identity().spec;
  std::vector<float> state(static_cast<std::size_t>(state_floats(spec.rule, spec.dim)));
  RuleKernel(spec.rule).start(state.data(), spec.dim);
  std::vector<StoredRow> stored;
  const float* row = rows.data();
  for (const std::int64_t id : ids) {
    stored.push_back({id, row, state.data(), 0, 0.0F, 0.0F});
    row += spec.dim;
  }
  table.restore(stored);
}

/** x = (x - o) / divisor, element by element. */
void to_progress(std::vector<float>& x, std::span<const float> o, float divisor) {
  std::ranges::transform(x, o, x.begin(), [=](float a, float b) { return (a - b) / divisor; });
}

void add(std::vector<float>& sum, const std::vector<float>& term) {
  std::ranges::transform(sum, term, sum.begin(), std::plus<>());
}

}  // namespace

GeoCopy::GeoCopy(Servers& servers, int server, std::uint64_t seed)
    : servers_(servers), server_(server), dense_(own_blocks(servers, server), "") {
  for (const TableSpec& spec : servers.tables()) {
    const std::uint64_t of_table = table_seed(seed, spec.name);
    tables_.push_back({Table({copied(spec), of_table, server, servers.count()}, ""),
                       Table({snapshot_of(spec), of_table, server, servers.count()}, ""), Merger(0),
                       false});
  }
  dense_o_.resize(static_cast<std::size_t>(dense_.elements()));
}

void GeoCopy::look_up(int table, const IdShare& share, float* rows) const {
  tables_[static_cast<std::size_t>(table)].x.lookup(share.ids, share.positions, rows);
}

void GeoCopy::start() {
  for (int number = 0; number < std::ssize(tables_); ++number) {
    pull_changed(number, [&](const Rows& rows) {
      set_rows(table(number).x, rows.ids, rows.values);
      set_rows(table(number).o, rows.ids, rows.values);
    });
  }
  if (dense_o_.empty()) return;
  servers_.pull_blocks(server_, dense_o_.data());
  dense_.set(dense_o_);
}

void GeoCopy::train(Batch& batch) {
  for (int number = 0; number < std::ssize(tables_); ++number) {
    const RowPush push = batch.rows(number);
    if (push.ids.empty()) continue;
    table(number).x.update({.ids = push.ids, .values = push.rows});
    table(number).trained.add(push.ids, nullptr);
  }
  for (const BlockGradient& gradient : batch.finish_dense()) dense_.update(gradient, 1.0F);
}

void GeoCopy::send_progress(int workers, std::int64_t round) {
  confirm_progress();  // an exchange may have ended before it did
  const auto divisor = static_cast<float>(workers);
  for (int number = 0; number < std::ssize(tables_); ++number) {
    CopiedTable& copy = table(number);
    std::vector<std::int64_t> ids(copy.trained.ids().begin(), copy.trained.ids().end());
    if (ids.empty()) continue;
    std::vector<float> progress = rows_of(copy.x, ids);
    to_progress(progress, rows_of(copy.o, ids), divisor);
    send_rows(number, std::move(ids), std::move(progress), round);
    copy.trained.clear();
  }
  if (dense_o_.empty()) return;
  const std::vector<float> progress = dense_progress(divisor);
  servers_.send_values(server_, RequestKind::add_dense, progress, round);
  add(dense_o_, progress);
}

/** Adds it to o, too. */
void GeoCopy::send_rows(int number, std::vector<std::int64_t> ids, std::vector<float> progress,
                        std::int64_t round) {
  Drafted rows = draft_rows(number, ids, progress, round);
  std::vector<float> o = rows_of(table(number).o, ids);
  add(progress, o);
  set_rows(table(number).o, ids, progress);
  try {
    sent_.push_back({number, std::move(ids), std::move(o), {}});
    sent_.back().asked = servers_.send_rows(rows);
  } catch (...) {
    take_back(sent_.back());
    sent_.pop_back();
    throw;
  }
}

void GeoCopy::take_back(const SentRows& sent) {
  set_rows(table(sent.table).o, sent.ids, sent.before);
  table(sent.table).trained.add(sent.ids, nullptr);
}

void GeoCopy::confirm_progress() {
  while (!sent_.empty()) {
    const Reply reply = sent_.front().asked.take();  // if that is interrupted, it is the next again
    const SentRows sent = std::move(sent_.front());
    sent_.pop_front();
    refused_.or_keep([&] {
      try {
        servers_.throw_unless_done(server_, reply);
      } catch (const SystemError&) {
        take_back(sent);
        throw;
      }
    });
  }
  refused_.throw_kept();
}

void GeoCopy::receive() {
  for (int number = 0; number < std::ssize(tables_); ++number) {
    CopiedTable& copy = table(number);
    pull_changed(number, [&](const Rows& rows) {
      const std::vector<float> o = rows_of(copy.o, rows.ids);
      std::vector<float> difference = rows.values;
      to_progress(difference, o, 1.0F);
      // Both change, or neither: what x alone had would count as this worker's progress.
      set_rows(copy.o, rows.ids, rows.values);
      try {
        copy.x.add({.ids = rows.ids, .values = difference.data()});
      } catch (...) {
        set_rows(copy.o, rows.ids, o);
        throw;
      }
    });
  }
  if (dense_o_.empty()) return;
  std::vector<float> values(dense_o_.size());
  servers_.pull_blocks(server_, values.data());
  std::vector<float> difference = values;
  to_progress(difference, dense_o_, 1.0F);
  dense_.add(difference);
  dense_o_.swap(values);
}

void GeoCopy::send_rest(std::int64_t round) {
  confirm_progress();
  for (int number = 0; number < std::ssize(tables_); ++number) {
    send_rest_of_table(number, [&](const auto& ids, const auto& progress) {
      send_rows(number, ids, progress, round);
    });
  }
  send_rest_of_dense(round);
}

void GeoCopy::finish(std::int64_t round, FirstError& errors) {
  errors.or_keep([&] { confirm_progress(); });
  for (int number = 0; number < std::ssize(tables_); ++number) {
    send_rest_of_table(number, [&](const auto& ids, const auto& progress) {
      errors.or_keep([&] {
        try {
          send_rows(number, ids, progress, round);
        } catch (const SystemError&) {
          send_last_rows(number, ids, progress, round);
        }
      });
    });
  }
  errors.or_keep([&] { send_rest_of_dense(round); });
}

void GeoCopy::send_rest_of_dense(std::int64_t round) {
  if (dense_o_.empty()) return;
  const std::vector<float> progress = dense_progress(1.0F);
  servers_.send_values(server_, RequestKind::add_dense, progress, round);
  add(dense_o_, progress);
}

void GeoCopy::send_last_rows(int number, std::span<const std::int64_t> ids,
                             const std::vector<float>& progress, std::int64_t round) {
  Drafted rows = draft_rows(number, ids, progress, round);
  servers_.send_rows(rows);
  set_rows(table(number).x, ids, rows_of(table(number).o, ids));
}

template <class Send>
void GeoCopy::send_rest_of_table(int number, const Send& send) {
  CopiedTable& copy = table(number);
  const auto dim = static_cast<std::size_t>(servers_.table(number).dim);
  std::vector<std::int64_t> ids;
  std::vector<float> progress;
  std::vector<float> o(dim);
  const auto send_some = [&] {
    if (!ids.empty()) send(ids, progress);
    ids.clear();
    progress.clear();
  };
  for (int shard = 0; shard < Table::kShards; ++shard) {
    copy.x.for_each_row(shard, [&](const StoredRow& row) {
      const std::span x(row.weights, dim);
      copy.o.lookup(std::span(&row.id, 1), {}, o.data());
      if (std::ranges::equal(x, o)) return;  // nothing is left of it
      ids.push_back(row.id);
      std::ranges::transform(x, o, std::back_inserter(progress), std::minus<>());
    });
    if (std::ssize(ids) >= kRows) send_some();
  }
  send_some();
  copy.trained.clear();
}

Drafted GeoCopy::draft_rows(int table, std::span<const std::int64_t> ids,
                            const std::vector<float>& progress, std::int64_t round) const {
  return servers_.draft_rows(server_, RequestKind::add_rows, table, {ids, progress.data()},
                             {ids, {}}, 1.0F, round);
}

template <class Take>
void GeoCopy::pull_changed(int table, const Take& take) {
  bool& pulling = this->table(table).pulling;
  bool is_last = false;
  while (!is_last) {
    const Rows rows = ask_for_changed(table, std::exchange(pulling, true));
    if (!rows.ids.empty()) take(rows);
    pulling = false;
    is_last = std::ssize(rows.ids) < kRows;
  }
}

GeoCopy::Rows GeoCopy::ask_for_changed(int table, bool again) {
  Asked asked = servers_.ask(server_, {.kind = RequestKind::pull_changed,
                                       .flags = again ? kAgain : std::uint8_t{0},
                                       .table = table,
                                       .count = kRows});
  const Reply reply = servers_.take(server_, asked);
  const auto dim = static_cast<std::size_t>(servers_.table(table).dim);
  const std::size_t row = sizeof(std::int64_t) + dim * sizeof(float);
  const std::size_t count = reply.payload.size() / row;
  if (count * row != reply.payload.size() || count > kRows) {
    throw Error(servers_.end(server_).name.text + ": a reply of " +
                std::to_string(reply.payload.size()) + " bytes with changed rows");
  }
  Rows rows{std::vector<std::int64_t>(count), std::vector<float>(count * dim)};
  if (count == 0) return rows;
  std::memcpy(rows.ids.data(), reply.payload.data(), count * sizeof(std::int64_t));
  std::memcpy(rows.values.data(), reply.payload.data() + count * sizeof(std::int64_t),
              count * dim * sizeof(float));
  return rows;
}

std::vector<float> GeoCopy::dense_progress(float divisor) const {
  std::vector<float> progress(dense_.values().begin(), dense_.values().end());
  to_progress(progress, dense_o_, divisor);
  return progress;
}

}  // namespace tutti::ps
