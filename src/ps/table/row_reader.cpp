// Look-ups, many at a time: each waits for two cache lines, one after the other, and others take
// their steps meanwhile.
#include "ps/table/row_reader.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "device/cpu/relax.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {
namespace {

constexpr int kMostTries = 64;

/** Between two tries. Whoever changes the row has done so at once, unless it was interrupted: then
 * it needs a core, and time. */
void pause(int tries) {
  if (tries < kMostTries / 4) {
    cpu::relax();
  } else if (tries < kMostTries / 2) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

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

bool RowReader::copy(const IndexResult& result, float* row) const {
  const auto& [slot, word] = result.found;
  if (slot == nullptr) return false;
  copy_row(weights(word), row, dim_);
  std::atomic_thread_fence(std::memory_order_acquire);
  // Id and word are of one slot unless the array's place has been written anew between them.
  if (index_.state(result.shard) != result.state) return false;
  if (!verifies_) return true;
  // What the slot says after the copy was so all the time: whoever changes a row says so first.
  return word / kVersion % 2 == 0 && slot->word.load(std::memory_order_relaxed) == word;
}

bool RowReader::lookup_again(std::int64_t id, float* row) const {
  if (is_padding(id)) {
    std::fill_n(row, dim_, 0.0F);
    return true;
  }
  for (int tries = 0; tries < kMostTries;) {
    const std::uint64_t within = index_.within(id);
    const int shard = shard_of(within);
    const Lines lines = index_.lines(shard);
    const IndexResult result{Index::search(lines, lines.home(within), id), lines.state, shard};
    if (copy(result, row)) return true;
    if (result.found.slot != nullptr) {
      if (identity_.spec.consistent_rows) pause(++tries);
    } else if (index_.state(shard) == lines.state) {
      fill_initial(identity_.spec.initial, identity_.seed, id, dim_, row);
      return true;
    }
  }
  return false;
}

std::int64_t RowReader::lookup(std::span<const std::int64_t> ids,
                               std::span<const std::int64_t> positions, float* out) const {
  std::int64_t torn = 0;
  search(ids, [&](std::size_t i, const IndexResult& result) {
    const std::int64_t position = positions.empty() ? static_cast<std::int64_t>(i) : positions[i];
    float* const row = out + position * dim_;
    if (!copy(result, row) && !lookup_again(ids[i], row)) ++torn;
  });
  return torn;
}

void RowReader::prefetch(std::span<const std::int64_t> ids) const {
  search(ids, [](std::size_t /*i*/, const IndexResult& /*result*/) {});
}

}  // namespace tutti::ps
