// Adds up gradients that go to one server together.
#include "ps/modes/batch.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "device/cpu/kernels.hpp"

namespace tutti::ps {
namespace {

/** Rows that are brought together before they are merged: they stay in the nearest cache. */
constexpr std::size_t kGathered = 256;

std::span<const float> span_of(const float* values, std::size_t count) {
  return values == nullptr ? std::span<const float>{} : std::span(values, count);
}

float* floats_of(const Draft& draft) { return reinterpret_cast<float*>(draft.payload.data()); }

float scale_of(const Rule& rule, std::int64_t batches) {
  return std::holds_alternative<Sgd>(rule) ? 1.0F : 1.0F / static_cast<float>(batches);
}

}  // namespace

Batch::Batch(const Servers& servers, int server)
    : servers_(&servers), server_(server), has_block_(servers.end(server).blocks.size()) {
  for (const TableSpec& table : servers.tables()) tables_.push_back({Merger(table.dim), table.dim});
}

void Batch::add_rows(int table, const RowPush& push, const IdShare& share) {
  if (share.ids.empty()) return;
  Rows& rows = tables_[static_cast<std::size_t>(table)];
  rows.batches = std::max<std::int64_t>(rows.batches, 1);
  batches_ = std::max<std::int64_t>(batches_, 1);
  const std::size_t count = share.ids.size();
  if (share.positions.empty()) {
    rows.merged.add(share.ids, push.rows, span_of(push.shows, count), span_of(push.clicks, count));
    return;
  }
  std::vector<float> near(kGathered * static_cast<std::size_t>(rows.dim));
  std::vector<float> shows(push.shows == nullptr ? 0 : kGathered);
  std::vector<float> clicks(push.clicks == nullptr ? 0 : kGathered);
  for (std::size_t begin = 0; begin < count; begin += kGathered) {
    const std::size_t part = std::min(kGathered, count - begin);
    const auto positions = share.positions.subspan(begin, part);
    const auto parts = static_cast<std::int64_t>(part);
    gather(push.rows, positions, parts, rows.dim, near.data());
    if (!shows.empty()) gather(push.shows, positions, parts, 1, shows.data());
    if (!clicks.empty()) gather(push.clicks, positions, parts, 1, clicks.data());
    rows.merged.add(share.ids.subspan(begin, part), near.data(),
                    std::span(shows).first(shows.empty() ? 0 : part),
                    std::span(clicks).first(clicks.empty() ? 0 : part));
  }
}

void Batch::add_dense(const Servers::Piece& piece, const float* gradient) {
  if (!dense_) dense_ = servers_->draft_dense(server_);
  dense_batches_ = std::max<std::int64_t>(dense_batches_, 1);
  batches_ = std::max<std::int64_t>(batches_, 1);
  add_block(piece.block, floats_of(*dense_) + piece.in_server, gradient, piece.count);
}

void Batch::add_block(std::size_t block, float* sum, const float* gradient, std::int64_t count) {
  if (has_block_[block]) {
    cpu::accumulate(sum, gradient, count, 1.0F, 1.0F);
  } else {
    copy_floats(sum, gradient, count);
    has_block_[block] = true;
  }
}

template <class Action>
void Batch::for_each_block(const Action& action) const {
  std::int64_t offset = 0;
  const std::vector<Block>& blocks = servers_->end(server_).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    action(i, offset, blocks[i]);
    offset += blocks[i].count;
  }
}

void Batch::add(const Batch& later) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const RowPush push = contents(later.tables_[i]);
    tables_[i].merged.add(push.ids, push.rows, span_of(push.shows, push.ids.size()),
                          span_of(push.clicks, push.ids.size()));
    tables_[i].batches += later.tables_[i].batches;
  }
  if (later.dense_batches_ > 0) {
    if (!dense_) dense_ = servers_->draft_dense(server_);
    for_each_block([&](std::size_t i, std::int64_t offset, const Block& block) {
      if (!later.has_block_[i]) return;
      add_block(i, floats_of(*dense_) + offset, floats_of(*later.dense_) + offset, block.count);
    });
  }
  dense_batches_ += later.dense_batches_;
  batches_ += later.batches_;
}

void Batch::clear() {
  for (Rows& rows : tables_) {
    rows.merged.clear();
    rows.batches = 0;
  }
  has_block_.assign(has_block_.size(), false);
  dense_batches_ = batches_ = 0;
}

std::span<const float> Batch::finish_dense() {
  if (dense_batches_ == 0) return {};
  for_each_block([&](std::size_t i, std::int64_t offset, const Block& block) {
    float* const sum = floats_of(*dense_) + offset;
    const float scale = scale_of(servers_->rule(static_cast<int>(block.parameter)), dense_batches_);
    if (!has_block_[i]) {
      std::fill_n(sum, block.count, 0.0F);
    } else if (scale != 1.0F) {
      std::transform(sum, sum + block.count, sum, [=](float x) { return x * scale; });
    }
  });
  return {floats_of(*dense_), static_cast<std::size_t>(servers_->elements(server_))};
}

RowPush Batch::contents(const Rows& rows) {
  return {rows.merged.ids(), rows.merged.rows(), rows.merged.shows(), rows.merged.clicks()};
}

void Batch::send(Servers& servers, std::int64_t round) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].batches == 0) continue;
    const auto table = static_cast<int>(i);
    const RowPush push = contents(tables_[i]);
    servers.push_rows(server_, RequestKind::push_rows, table, push, {push.ids, {}},
                      scale_of(servers.table(table).rule, tables_[i].batches), round);
  }
  if (!finish_dense().empty()) {
    servers.send_dense(server_, RequestKind::push_dense, *std::exchange(dense_, std::nullopt),
                       round);
  }
}

}  // namespace tutti::ps
