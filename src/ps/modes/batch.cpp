// Adds up gradients that go to one server together.
#include "ps/modes/batch.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/finally.hpp"
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

void Batch::reserve_for(std::size_t block) {
  if (!has(block) && !dense_) dense_ = servers_->draft_gradients(server_);
}

void Batch::add_dense(const Servers::Piece& piece, const float* gradient) {
  add_to_block(piece.block, gradient);
  std::int64_t& batches = blocks_[piece.block].batches;
  batches = std::max<std::int64_t>(batches, 1);
  batches_ = std::max<std::int64_t>(batches_, 1);
}

void Batch::add_placed(std::size_t block, PlacedGradient::Held gradient) {
  float* const elements = gradient.elements();
  blocks_[block] = {elements, 1, std::move(gradient)};
  placed_.push_back(static_cast<std::int32_t>(block));
  batches_ = std::max<std::int64_t>(batches_, 1);
}

void Batch::add_to_block(std::size_t number, const float* gradient) {
  BlockSum& block = blocks_[number];
  const std::int64_t count = elements_of(number);
  if (has(number)) {
    cpu::accumulate(block.elements, gradient, count, 1.0F, 1.0F);
    return;
  }
  reserve_for(number);
  copied_.push_back(static_cast<std::int32_t>(number));
  block.elements = floats_of(*dense_) + std::exchange(copied_elements_, copied_elements_ + count);
  copy_floats(block.elements, gradient, count);
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
  if (!dense_) adopt_copies(later);  // where memory is short there is no other
  for (const std::vector<std::int32_t>* numbers : {&later.copied_, &later.placed_}) {
    for (const std::int32_t number : *numbers) {
      const auto at = static_cast<std::size_t>(number);
      BlockSum& theirs = later.blocks_[at];
      if (theirs.placed && !has(at)) {
        blocks_[at] = std::move(theirs);
        placed_.push_back(number);
      } else {
        add_to_block(at, theirs.elements);
        blocks_[at].batches += theirs.batches;
      }
    }
  }
  batches_ += later.batches_;
}

void Batch::adopt_copies(Batch& later) {
  std::swap(dense_, later.dense_);
  copied_.swap(later.copied_);
  std::swap(copied_elements_, later.copied_elements_);
  for (const std::int32_t number : copied_) {
    const auto at = static_cast<std::size_t>(number);
    BlockSum& sum = later.blocks_[at];
    if (has(at)) {
      cpu::accumulate(sum.elements, blocks_[at].elements, elements_of(at), 1.0F, 1.0F);
      sum.batches += blocks_[at].batches;
      std::erase(placed_, number);
    }
    blocks_[at] = std::move(sum);
    sum = {};
  }
}

void Batch::clear() {
  drop_gradients();
  batches_ = 0;
}

void Batch::drop_gradients() {
  for (Rows& rows : tables_) {
    rows.merged.clear();
    rows.batches = 0;
  }
  for (BlockSum& block : blocks_) block = {};
  copied_.clear();
  placed_.clear();
  copied_elements_ = 0;
}

std::vector<BlockGradient> Batch::finish_dense() {
  std::vector<BlockGradient> gradients;
  for (const std::vector<std::int32_t>* numbers : {&copied_, &placed_}) {
    for (const std::int32_t number : *numbers) {
      const auto at = static_cast<std::size_t>(number);
      const std::int64_t parameter = servers_->end(server_).blocks[at].parameter;
      const std::span sum(blocks_[at].elements, static_cast<std::size_t>(elements_of(at)));
      const float scale =
          scale_of(servers_->rule(static_cast<int>(parameter)), blocks_[at].batches);
      if (scale != 1.0F)
        std::ranges::transform(sum, sum.begin(), [=](float x) { return x * scale; });
      gradients.push_back({number, sum});
    }
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
  const Finally sent([&] { drop_gradients(); });  // even if not all of it is: nothing goes twice
  for (Drafted& drafted : rows) servers.send_rows(drafted);
  finish_dense();
  if (!copied_.empty()) {
    servers.push_gradients(server_, *std::exchange(dense_, std::nullopt), copied_elements_, copied_,
                           round);
  }
  for (const std::int32_t number : placed_) {
    PlacedGradient::Held& placed = *blocks_[static_cast<std::size_t>(number)].placed;
    placed.sent_as(servers.push_block(server_, placed.draft(), number, round));
  }
}

}  // namespace tutti::ps
