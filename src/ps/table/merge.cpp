// Adds up gradients of equal ids by a small hash table, which is emptied by counting up.
#include "ps/table/merge.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "ps/table/place.hpp"

namespace tutti::ps {
namespace {

constexpr std::size_t kFewestSlots = 1024;

}  // namespace

Merger::Merger(std::int64_t dim) : dim_(dim) {}

void Merger::clear() {
  ids_.clear();
  rows_.clear();
  shows_.clear();
  clicks_.clear();
  if (++generation_ != 0) return;
  std::fill(slots_.begin(), slots_.end(), Slot{});  // after 2^32 times
  generation_ = 1;
}

void Merger::reserve(std::size_t ids) {
  if (2 * ids <= slots_.size()) return;
  slots_.assign(std::bit_ceil(std::max(2 * ids, kFewestSlots)), Slot{});
  generation_ = 1;
  for (std::size_t place = 0; place < ids_.size(); ++place) {
    slot_of(ids_[place]) = {ids_[place], static_cast<std::uint32_t>(place), generation_};
  }
}

Merger::Slot& Merger::slot_of(std::int64_t id) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = mix64(static_cast<std::uint64_t>(id)) & mask;
  while (slots_[i].generation == generation_ && slots_[i].id != id) i = (i + 1) & mask;
  return slots_[i];
}

void Merger::add(std::span<const std::int64_t> ids, const float* rows, std::span<const float> shows,
                 std::span<const float> clicks) {
  reserve(ids_.size() + ids.size());
  const auto dim = static_cast<std::size_t>(dim_);
  const bool has_shows = !shows.empty() || !shows_.empty();
  const bool has_clicks = !clicks.empty() || !clicks_.empty();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Slot& slot = slot_of(ids[i]);
    const float* const row = rows + i * dim;
    if (slot.generation != generation_) {
      slot = {ids[i], static_cast<std::uint32_t>(ids_.size()), generation_};
      ids_.push_back(ids[i]);
      rows_.insert(rows_.end(), row, row + dim);
    } else {
      float* const sum = rows_.data() + slot.place * dim;
      for (std::size_t j = 0; j < dim; ++j) sum[j] += row[j];
    }
    if (has_shows) shows_.resize(ids_.size());
    if (has_clicks) clicks_.resize(ids_.size());
    if (!shows.empty()) shows_[slot.place] += shows[i];
    if (!clicks.empty()) clicks_[slot.place] += clicks[i];
  }
}

}  // namespace tutti::ps
