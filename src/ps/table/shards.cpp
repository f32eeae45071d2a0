// Puts ids into the index, and writes shards anew that are full.
#include "ps/table/shards.hpp"

#include <atomic>
#include <cerrno>
#include <cmath>
#include <string>

#include "base/page_size.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

// A shard is written anew when it is fuller than the first, and has the second share of its slots
// filled then. The closer they are, the less memory is taken and the more often ids are moved,
// which is done in the order in which they lie.
constexpr double kFullest = 0.72;
constexpr double kRoomiest = 0.62;

// Arrays that were written anew keep their memory for some time: a reader may still be in one. If
// it comes there even later, it sees that the array is old, but by reading has taken a page that
// counts as nobody's until the place is used again; with /dev/shm full it is killed by SIGBUS. That
// takes a process that was stopped in the middle of a search.
constexpr std::size_t kOldArrays = 16;

bool fits(std::int64_t ids, std::int64_t lines) {
  return static_cast<double>(ids) <= kFullest * static_cast<double>(lines * Line::kSlots);
}

std::int64_t lines_for(std::int64_t ids) {
  const double slots = static_cast<double>(ids) / kRoomiest;
  const std::int64_t lines_of_page = page_size() / static_cast<std::int64_t>(sizeof(Line));
  return round_up(static_cast<std::int64_t>(slots / Line::kSlots) + 1, lines_of_page);
}

/** Writes an id into the first vacant slot from its home line on. */
Slot& put(const Lines& lines, std::uint64_t within, std::int64_t id, std::uint64_t word) {
  for (Line* line = lines.home(within);; line = lines.after(line)) {
    for (Slot& slot : line->slots) {
      if (row_of(slot.word.load(std::memory_order_relaxed)) != kVacant) continue;
      slot.id.store(id, std::memory_order_relaxed);
      slot.word.store(word, std::memory_order_release);  // now it is seen
      return slot;
    }
  }
}

}  // namespace

std::int64_t Shards::array_bytes(std::int64_t most_rows) {
  // Hashes spread ids evenly: ten standard deviations more than the mean do not occur.
  const double mean = static_cast<double>(most_rows) / kIndexShards;
  const auto ids = static_cast<std::int64_t>(mean + 10.0 * std::sqrt(mean)) + 64;
  const std::int64_t bytes = lines_for(ids) * static_cast<std::int64_t>(sizeof(Line));
  return bytes < kHugePage ? bytes : round_up(bytes, kHugePage);
}

bool Shards::make_room(const Counts& more) {
  bool moved = false;
  for (int shard = 0; shard < kIndexShards; ++shard) {
    const auto i = static_cast<std::size_t>(shard);
    if (more[i] == 0 || fits(used_[i] + more[i], index_.state(shard).lines)) continue;
    rewrite(shard, live_[i] + more[i]);
    moved = true;
  }
  return moved;
}

void Shards::rewrite(int shard, std::int64_t rows) {
  const ShardState old = index_.state(shard);
  const std::int64_t count = lines_for(rows);
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(Line));
  if (bytes > index_.header().layout.array_bytes) {
    throw SystemError("a shard of the index is full: it has " + std::to_string(old.lines) +
                          " lines of " + std::to_string(Line::kSlots) + " ids",
                      ENOSPC);
  }
  const ShardState state{old.generation + 1, static_cast<std::uint32_t>(count)};
  // Another old array of the shard may have this place.
  std::erase_if(old_, [&](const OldArray& array) {
    if (array.shard != shard) return false;
    give_back(array);
    return true;
  });
  arena_.take(index_.array_offset(shard, state.generation), bytes);
  // Who sees an id in this place also sees that what was here before has become old.
  std::atomic_thread_fence(std::memory_order_release);
  const Lines from = index_.lines(shard, old);
  const Lines to = index_.lines(shard, state);
  for (std::uint32_t line = 0; line < old.lines; ++line) {
    for (const Slot& slot : from.first[line].slots) {
      const std::uint64_t word = slot.word.load(std::memory_order_relaxed);
      if (!has_row(word)) continue;
      const std::int64_t id = slot.id.load(std::memory_order_relaxed);
      put(to, index_.within(id), id, word);
    }
  }
  if (old.lines > 0) old_.push_back({shard, old});
  const auto i = static_cast<std::size_t>(shard);
  used_[i] = live_[i];
  index_.header().shards[i].store(state, std::memory_order_release);
  if (old_.size() <= kOldArrays) return;
  give_back(old_.front());
  old_.pop_front();
}

void Shards::give_back(const OldArray& array) {
  arena_.give_back(index_.array_offset(array.shard, array.state.generation),
                   static_cast<std::int64_t>(array.state.lines * sizeof(Line)));
}

Slot& Shards::insert(std::int64_t id, std::uint32_t row) {
  const std::uint64_t within = index_.within(id);
  const int shard = shard_of(within);
  ++live_[static_cast<std::size_t>(shard)];
  ++used_[static_cast<std::size_t>(shard)];
  return put(index_.lines(shard), within, id, std::uint64_t{row} + 1);
}

void Shards::remove(Slot& slot) {
  const std::int64_t id = slot.id.load(std::memory_order_relaxed);
  --live_[static_cast<std::size_t>(shard_of(index_.within(id)))];
  const std::uint64_t word = slot.word.load(std::memory_order_relaxed);
  // The version goes on, and stays even.
  slot.word.store((word / kVersion + 2) * kVersion + kRemoved, std::memory_order_release);
  // Who sees in the row what another id is to have there also sees this.
  std::atomic_thread_fence(std::memory_order_release);
}

}  // namespace tutti::ps
