// Look-ups, many at a time: each waits for two cache lines, one after the other, and others take
// their steps meanwhile.
#include "ps/table/row_reader.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "ps/table/initial.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {
namespace {

constexpr int kMostTries = 64;
constexpr std::size_t kGroup = 16;  // ids that take a step together
constexpr std::size_t kSteps = 3;

}  // namespace

bool evicts(const TableSpec& spec) {
  const Eviction& eviction = spec.eviction;
  return eviction.max_age > 0 || eviction.max_bytes > 0 || eviction.min_score > 0.0F;
}

RowReader::RowReader(const TableIdentity& identity, std::byte* base)
    : identity_(identity),
      index_(base, identity.spec.split, identity.servers),
      weights_(reinterpret_cast<const float*>(base + index_.header().layout.weights_offset)),
      dim_(identity.spec.dim),
      verifies_(identity.spec.consistent_rows || evicts(identity.spec)) {}

RowReader::Search RowReader::begin(std::int64_t id) const {
  const std::uint64_t within = index_.within(id);
  const int shard = shard_of(within);
  const Lines lines = index_.lines(shard);
  Line* const home = lines.home(within);
  __builtin_prefetch(home);
  return {shard, lines, home, {}};
}

void RowReader::find(Search& search, std::int64_t id) const {
  search.found = Index::find(search.lines, search.home, id);
  if (search.found.slot != nullptr) prefetch_row(weights(search.found.word), dim_);
}

bool RowReader::finish(const Search& search, float* row) const {
  const auto& [slot, word] = search.found;
  if (slot == nullptr) return false;
  copy_row(weights(word), row, dim_);
  if (!verifies_) return true;
  // What the slot says after the copy was so all the time: whoever changes a row says so first.
  std::atomic_thread_fence(std::memory_order_acquire);
  return word / kVersion % 2 == 0 && slot->word.load(std::memory_order_relaxed) == word &&
         index_.state(search.shard) == search.lines.state;
}

bool RowReader::lookup_again(std::int64_t id, float* row) const {
  if (is_padding(id)) {
    std::fill_n(row, dim_, 0.0F);
    return true;
  }
  for (int tries = 0; tries < kMostTries;) {
    Search search = begin(id);
    find(search, id);
    if (finish(search, row)) return true;
    if (search.found.slot != nullptr) {
      if (identity_.spec.consistent_rows) ++tries;
    } else if (index_.state(search.shard) == search.lines.state) {
      fill_initial(identity_.spec.initial, identity_.seed, id, dim_, row);
      return true;
    }
  }
  return false;
}

std::int64_t RowReader::lookup(std::span<const std::int64_t> ids,
                               std::span<const std::int64_t> positions, float* out) const {
  std::array<Search, kSteps * kGroup> searches;
  std::int64_t torn = 0;
  const auto in_group = [&](std::size_t start, const auto& step) {
    if (start >= ids.size()) return;  // also where there is no group yet
    Search* const group = &searches[start / kGroup % kSteps * kGroup];
    const std::size_t count = std::min(kGroup, ids.size() - start);
    for (std::size_t i = 0; i < count; ++i) step(group[i], start + i);
  };
  for (std::size_t start = 0; start < ids.size() + 2 * kGroup; start += kGroup) {
    in_group(start, [&](Search& search, std::size_t i) { search = begin(ids[i]); });
    in_group(start - kGroup, [&](Search& search, std::size_t i) { find(search, ids[i]); });
    in_group(start - 2 * kGroup, [&](Search& search, std::size_t i) {
      const std::int64_t position = positions.empty() ? static_cast<std::int64_t>(i) : positions[i];
      float* const row = out + position * dim_;
      if (!finish(search, row) && !lookup_again(ids[i], row)) ++torn;
    });
  }
  return torn;
}

void RowReader::prefetch(std::span<const std::int64_t> ids) const {
  std::array<Search, kGroup> group;
  for (std::size_t start = 0; start < ids.size(); start += kGroup) {
    const auto part = ids.subspan(start, std::min(kGroup, ids.size() - start));
    for (std::size_t i = 0; i < part.size(); ++i) group[i] = begin(part[i]);
    for (std::size_t i = 0; i < part.size(); ++i) find(group[i], part[i]);
  }
}

}  // namespace tutti::ps
