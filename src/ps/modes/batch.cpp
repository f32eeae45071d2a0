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
    : servers_(&servers), server_(server), blocks_(servers.end(server).blocks.size()) {
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

void Batch::reserve_dense() {
  if (!dense_) dense_ = servers_->draft_gradients(server_);
}

void Batch::add_dense(const Servers::Piece& piece, const float* gradient) {
  add_to_block(piece.block, gradient);
  std::int64_t& batches = blocks_[piece.block].batches;
  batches = std::max<std::int64_t>(batches, 1);
  batches_ = std::max<std::int64_t>(batches_, 1);
}

void Batch::add_to_block(std::size_t number, const float* gradient) {
  reserve_dense();
  BlockSum& block = blocks_[number];
  const std::int64_t count = elements_of(number);
  if (block.batches > 0) {
    cpu::accumulate(floats_of(*dense_) + block.offset, gradient, count, 1.0F, 1.0F);
    return;
  }
  numbers_.push_back(static_cast<std::int32_t>(number));
  block.offset = std::exchange(dense_elements_, dense_elements_ + count);
  copy_floats(floats_of(*dense_) + block.offset, gradient, count);
}

std::int64_t Batch::elements_of(std::size_t block) const {
  return servers_->end(server_).blocks[block].count;
}

void Batch::add(Batch& later) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const RowPush push = contents(later.tables_[i]);
    tables_[i].merged.add(push.ids, push.rows, span_of(push.shows, push.ids.size()),
                          span_of(push.clicks, push.ids.size()));
    tables_[i].batches += later.tables_[i].batches;
  }
  if (!dense_) {  // the later one's memory will do: where it is short there is no other
    std::swap(dense_, later.dense_);
    blocks_.swap(later.blocks_);
    numbers_.swap(later.numbers_);
    std::swap(dense_elements_, later.dense_elements_);
  }
  for (const std::int32_t number : later.numbers_) {
    const auto at = static_cast<std::size_t>(number);
    add_to_block(at, floats_of(*later.dense_) + later.blocks_[at].offset);
    blocks_[at].batches += later.blocks_[at].batches;
  }
  batches_ += later.batches_;
}

void Batch::clear() {
  for (Rows& rows : tables_) {
    rows.merged.clear();
    rows.batches = 0;
  }
  blocks_.assign(blocks_.size(), {});
  numbers_.clear();
  dense_elements_ = batches_ = 0;
}

std::vector<BlockGradient> Batch::finish_dense() {
  std::vector<BlockGradient> gradients;
  for (const std::int32_t number : numbers_) {
    const auto at = static_cast<std::size_t>(number);
    const std::int64_t parameter = servers_->end(server_).blocks[at].parameter;
    const std::span sum(floats_of(*dense_) + blocks_[at].offset,
                        static_cast<std::size_t>(elements_of(at)));
    const float scale = scale_of(servers_->rule(static_cast<int>(parameter)), blocks_[at].batches);
    if (scale != 1.0F) std::ranges::transform(sum, sum.begin(), [=](float x) { return x * scale; });
    gradients.push_back({number, sum});
  }
  return gradients;
}

RowPush Batch::contents(const Rows& rows) {
  return {rows.merged.ids(), rows.merged.rows(), rows.merged.shows(), rows.merged.clicks()};
}

void Batch::send(Servers& servers, std::int64_t round) {
  std::vector<Drafted> rows;  // all are written before the first is sent: or else nothing is
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].batches == 0) continue;
    const auto table = static_cast<int>(i);
    const RowPush push = contents(tables_[i]);
    rows.push_back(servers.draft_rows(server_, RequestKind::push_rows, table, push, {push.ids, {}},
                                      scale_of(servers.table(table).rule, tables_[i].batches),
                                      round));
  }
  for (Drafted& drafted : rows) servers.send_rows(drafted);
  if (!finish_dense().empty()) {
    servers.push_gradients(server_, *std::exchange(dense_, std::nullopt), dense_elements_, numbers_,
                           round);
  }
}

}  // namespace tutti::ps
