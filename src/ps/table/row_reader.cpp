// Look-ups, many at a time: each waits for two cache lines, one after the other, and others take
// their steps meanwhile.
#include "ps/table/row_reader.hpp"

#include <algorithm>
#include <atomic>

#include "ps/table/initial.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {
namespace {

constexpr int kMostTries = 64;

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

void RowReader::search(IndexSearch& search, std::span<const std::int64_t> ids) const {
  search.run(index_, ids, [&](std::uint64_t word) { prefetch_row(weights(word), dim_); });
}

bool RowReader::copy(const IndexSearch::Result& result, float* row) const {
  const auto& [slot, word] = result.found;
  if (slot == nullptr) return false;
  copy_row(weights(word), row, dim_);
  if (!verifies_) return true;
  // What the slot says after the copy was so all the time: whoever changes a row says so first.
  std::atomic_thread_fence(std::memory_order_acquire);
  return word / kVersion % 2 == 0 && slot->word.load(std::memory_order_relaxed) == word &&
         index_.state(result.shard) == result.lines.state;
}

bool RowReader::lookup_again(std::int64_t id, float* row) const {
  if (is_padding(id)) {
    std::fill_n(row, dim_, 0.0F);
    return true;
  }
  IndexSearch one;
  for (int tries = 0; tries < kMostTries;) {
    search(one, {&id, 1});
    if (copy(one[0], row)) return true;
    if (one[0].found.slot != nullptr) {
      if (identity_.spec.consistent_rows) ++tries;
    } else if (index_.state(one[0].shard) == one[0].lines.state) {
      fill_initial(identity_.spec.initial, identity_.seed, id, dim_, row);
      return true;
    }
  }
  return false;
}

std::int64_t RowReader::lookup(std::span<const std::int64_t> ids,
                               std::span<const std::int64_t> positions, float* out) const {
  IndexSearch found;
  std::int64_t torn = 0;
  for (std::size_t start = 0; start < ids.size(); start += IndexSearch::kMost) {
    const auto part = ids.subspan(start, std::min(IndexSearch::kMost, ids.size() - start));
    search(found, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::int64_t position =
          positions.empty() ? static_cast<std::int64_t>(start + i) : positions[start + i];
      float* const row = out + position * dim_;
      if (!copy(found[i], row) && !lookup_again(part[i], row)) ++torn;
    }
  }
  return torn;
}

void RowReader::prefetch(std::span<const std::int64_t> ids) const {
  IndexSearch found;
  for (std::size_t start = 0; start < ids.size(); start += IndexSearch::kMost) {
    search(found, ids.subspan(start, std::min(IndexSearch::kMost, ids.size() - start)));
  }
}

}  // namespace tutti::ps
