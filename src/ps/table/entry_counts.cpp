// Keeps numbers of ids in the slots of an index.
#include "ps/table/entry_counts.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "ps/table/eviction.hpp"

namespace tutti::ps {
namespace {

// A slot's word is, from its lowest bit on: a 1, so that it is not kVacant; the period, modulo a
// prime to its bits, so that it is not kRemoved; and the sum, which is not negative, without its
// sign and the last bits: whole numbers up to 2^48 are exact.
constexpr unsigned kPeriodBits = 5;
constexpr std::uint64_t kPeriods = (1U << kPeriodBits) - 1;
static_assert(kPeriods > 2 * 8 + 1, "of ages that there are, none is mistaken for another");

double sum_of(std::uint64_t word) {
  return std::bit_cast<double>(word >> (kPeriodBits + 1) << kPeriodBits);
}

std::int64_t period_of_age(std::int64_t max_age) {
  return max_age == 0 ? 0 : EvictionPolicy::steps_of_slices(max_age);
}

TableLayout counts_layout(const TableSpec& spec) {
  TableLayout layout;
  layout.most_rows = Arena::most_bytes("") / static_cast<std::int64_t>(sizeof(Slot));
  if (spec.dict_size > 0) layout.most_rows = std::min(layout.most_rows, spec.dict_size);
  layout.array_bytes = Shards::array_bytes(layout.most_rows);
  layout.index_offset = round_up(sizeof(TableHeader), kHugePage);
  layout.bytes = round_up(layout.index_offset + Shards::range_bytes(layout.array_bytes), kHugePage);
  return layout;
}

}  // namespace

EntryCounts::EntryCounts(const TableIdentity& identity)
    : period_(period_of_age(identity.spec.eviction.max_age)),
      most_age_(period_ == 0 ? 0 : (identity.spec.eviction.max_age + period_ - 1) / period_),
      layout_(counts_layout(identity.spec)),
      arena_("", layout_.bytes),
      shards_(arena_, Index(begin_memory(arena_, layout_), identity.spec.split, identity.servers)) {
  arena_.keep_from_children();
}

void EntryCounts::find(std::span<const std::int64_t> ids, std::int64_t step) {
  ids_.assign(ids.begin(), ids.end());
  found_.assign(ids.size(), {.step = step});
  locate();
  for (Found& found : found_) {
    if (found.slot == nullptr) continue;
    const std::uint64_t word = found.slot->word.load(std::memory_order_relaxed);
    if (!is_old(age_of(word, step))) found.sum = sum_of(word);
  }
}

void EntryCounts::locate() {
  const auto nothing = [](std::uint64_t /*word*/) {};
  search_index(shards_.index(), ids_, nothing, [&](std::size_t i, const IndexResult& result) {
    found_[i].slot = result.found.slot;
  });
}

void EntryCounts::make_room() {
  Shards::Counts more{};
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (found_[i].slot != nullptr || found_[i].sum == 0) continue;
    ++more[static_cast<std::size_t>(shard_of(shards_.index().within(ids_[i])))];
  }
  if (shards_.make_room(more)) locate();
}

void EntryCounts::keep() {
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    Found& found = found_[i];
    if (found.sum == 0) {
      if (found.slot != nullptr) shards_.remove(*found.slot);
      continue;
    }
    if (found.slot == nullptr) found.slot = &shards_.insert(ids_[i], 0);
    found.slot->word.store(word_of(found), std::memory_order_relaxed);
  }
}

void EntryCounts::forget_old(const Interval& within, std::int64_t step) {
  shards_.for_each_between(within, [&](std::uint64_t, Slot& slot) {
    if (is_old(age_of(slot.word.load(std::memory_order_relaxed), step))) shards_.remove(slot);
  });
}

std::uint64_t EntryCounts::word_of(const Found& found) const {
  const std::uint64_t sum = std::bit_cast<std::uint64_t>(found.sum) >> kPeriodBits;
  const std::uint64_t period = static_cast<std::uint64_t>(period_of(found.step)) % kPeriods;
  return (sum << kPeriodBits | period) << 1U | 1U;
}

std::int64_t EntryCounts::age_of(std::uint64_t word, std::int64_t step) const {
  const std::uint64_t now = static_cast<std::uint64_t>(period_of(step)) % kPeriods;
  const std::uint64_t then = (word >> 1U) % (kPeriods + 1);
  return static_cast<std::int64_t>((now + kPeriods - then) % kPeriods);
}

std::vector<StoredCount> EntryCounts::between(std::uint64_t first, std::uint64_t last,
                                              std::int64_t step) const {
  std::vector<StoredCount> counts;
  for (const auto& [within, slot] : shards_.sorted(first, last)) {
    const std::uint64_t word = slot->word.load(std::memory_order_relaxed);
    const std::int64_t age = age_of(word, step);
    if (is_old(age)) continue;
    const std::int64_t began = (period_of(step) - age) * period_;
    counts.push_back({.id = slot->id.load(std::memory_order_relaxed),
                      .last_step = period_ == 0 ? step : std::max<std::int64_t>(0, began),
                      .sum = sum_of(word)});
  }
  return counts;
}

void EntryCounts::restore(std::span<const StoredCount> stored, std::int64_t step) {
  std::vector<std::int64_t> ids(stored.size());
  std::transform(stored.begin(), stored.end(), ids.begin(),
                 [](const StoredCount& count) { return count.id; });
  find(ids, step);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const bool is_forgotten = is_old(period_of(step) - period_of(stored[i].last_step));
    found_[i].sum = is_forgotten ? 0 : stored[i].sum;
    found_[i].step = stored[i].last_step;
  }
  make_room();
  keep();
}

}  // namespace tutti::ps
