// Puts ids into the index, and writes shards anew that are full.
#include "ps/table/shards.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <new>
#include <numeric>
#include <string>

#include "base/page_size.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

// An array is written anew when it is fuller than the first, and has about the second share of its
// slots filled then. The closer they are, the less memory is taken and the more often ids are
// moved, which is done in the order in which they lie.
constexpr double kFullest = 0.72;
constexpr double kRoomiest = 0.62;
// No fuller than that when it is written: just below the next step of its sizes there would be room
// for but a few more.
constexpr double kFull = kFullest - 0.02;

// Larger arrays are cut in two: to write one anew takes some milliseconds.
constexpr std::int64_t kMostArrayBytes = std::int64_t{16} << 20U;

// Of its own part of the array a shard may have so many ids more than there are slots. Hashes
// spread ids evenly, but files bring a shard's after those of another.
constexpr std::int64_t kCrowd = 64;

// Of so many arrays one that was written anew keeps its memory until the next is: a reader may
// still be in it. If it comes there even later, it sees that the array is old, but by reading has
// taken a page that counts as nobody's until the place is used again; with /dev/shm full it is
// killed by SIGBUS. That takes a process that was stopped in the middle of a search.
constexpr std::size_t kArraysForAnOldOne = kIndexShards >> kFirstSpan;

bool fits(std::int64_t ids, std::int64_t lines) {
  return static_cast<double>(ids) <= kFullest * static_cast<double>(lines * Line::kSlots);
}

std::int64_t whole_pages(double lines) {
  const std::int64_t lines_of_page = page_size() / static_cast<std::int64_t>(sizeof(Line));
  return round_up(static_cast<std::int64_t>(lines) + 1, lines_of_page);
}

/** Sizes of an array are steps of a ladder, which begins elsewhere for each first shard: since all
 * grow alike, all would be written anew at once. */
std::int64_t lines_for(std::int64_t ids, int shard) {
  constexpr double kGrowth = kFullest / kRoomiest;
  const double phase = static_cast<double>(shard) / kIndexShards;
  const double least = static_cast<double>(ids) / kFull / Line::kSlots;
  const double steps = std::ceil(std::log(std::max(least, 1.0)) / std::log(kGrowth) - phase);
  return whole_pages(std::pow(kGrowth, steps + phase));
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
  const double ids = mean + 10.0 * std::sqrt(mean) + kCrowd;
  const std::int64_t bytes =
      whole_pages(ids / kRoomiest / Line::kSlots) * static_cast<std::int64_t>(sizeof(Line));
  return bytes < kHugePage / 16 ? bytes : round_up(bytes, kHugePage);
}

std::byte* begin_memory(Arena& arena, const TableLayout& layout) {
  arena.take(0, round_up(sizeof(TableHeader), page_size()));
  (new (arena.base()) TableHeader)->layout = layout;
  return arena.base();
}

void Shards::expect(std::int64_t ids) {
  const double mean = static_cast<double>(ids) / kIndexShards;
  Counts more;
  more.fill(static_cast<std::int64_t>(mean + 2.0 * std::sqrt(mean)));
  make_room(more);
}

std::int64_t Shards::count() const {
  return std::accumulate(live_.begin(), live_.end(), std::int64_t{0});
}

std::vector<std::pair<std::uint64_t, Slot*>> Shards::sorted(std::uint64_t first,
                                                            std::uint64_t last) const {
  std::vector<std::pair<std::uint64_t, Slot*>> slots;
  for_each_between(Interval{first, last}, [&](std::uint64_t within, Slot& slot) {
    // They lie nearly in that order, so each has but few to overtake.
    const std::pair entry(within, &slot);
    auto place = slots.insert(slots.end(), entry);
    for (; place != slots.begin() && entry < place[-1]; --place) *place = place[-1];
    *place = entry;
  });
  return slots;
}

std::int64_t Shards::most_bytes(std::int64_t ids) {
  constexpr double kEmptiest = kFull * kRoomiest / kFullest;  // at the beginning of a step
  constexpr std::int64_t kArrays = kIndexShards >> kFirstSpan;
  const std::int64_t bytes = static_cast<std::int64_t>(
      static_cast<double>(ids * static_cast<std::int64_t>(sizeof(Slot))) / kEmptiest);
  const std::int64_t pages = 2 * kArrays * page_size();  // that an array begins, or is crowded into
  return round_up(sizeof(TableHeader), page_size()) + (bytes + pages) +
         (bytes + pages) / static_cast<std::int64_t>(kArraysForAnOldOne);
}

bool Shards::make_room(const Counts& more) {
  bool moved = false;
  for (int shard = 0; shard < kIndexShards;) {
    const Array array{shard, index_.state(shard)};
    shard += array.state.shards();
    if (has_room(array, more)) continue;
    write_anew(array, more);
    moved = true;
  }
  return moved;
}

bool Shards::has_room(const Array& array, const Counts& more) const {
  const std::int64_t slots = std::int64_t{array.state.lines} * Line::kSlots;
  const std::int64_t most = (slots >> array.state.span) + kCrowd;
  std::int64_t added = 0;
  std::int64_t all = 0;
  bool is_crowded = false;
  for (int shard = array.shard; shard < array.shard + array.state.shards(); ++shard) {
    const auto i = static_cast<std::size_t>(shard);
    added += more[i];
    all += used_[i] + more[i];
    is_crowded = is_crowded || used_[i] + more[i] > most;
  }
  return added == 0 || (fits(all, array.state.lines) && (!is_crowded || array.state.span == 0));
}

void Shards::plan(int shard, std::uint32_t span, std::uint32_t generation, const Counts& more,
                  std::vector<Array>& arrays) const {
  std::int64_t ids = 0;
  std::int64_t most = 0;
  for (int each = shard; each < shard + (1 << span); ++each) {
    const auto i = static_cast<std::size_t>(each);
    ids += live_[i] + more[i];
    most = std::max(most, live_[i] + more[i]);
  }
  const std::int64_t lines = ids == 0 ? 0 : lines_for(ids, shard);
  const std::int64_t bytes = lines * static_cast<std::int64_t>(sizeof(Line));
  const bool is_crowded = most > (lines * Line::kSlots >> span) + kCrowd;
  if (span > 0 && (is_crowded || bytes > kMostArrayBytes)) {
    plan(shard, span - 1, generation, more, arrays);
    plan(shard + (1 << (span - 1)), span - 1, generation, more, arrays);
    return;
  }
  if (bytes > index_.header().layout.array_bytes << span) {
    throw SystemError("a shard of the index is full: it has " + std::to_string(most) + " ids",
                      ENOSPC);
  }
  arrays.push_back({shard,
                    {.generation = generation,
                     .lines = static_cast<std::uint32_t>(lines) & ShardState::kMostLines,
                     .span = span & ShardState::kMostSpan}});
}

void Shards::write_anew(const Array& old, const Counts& more) {
  std::vector<Array> arrays;
  plan(old.shard, old.state.span, old.state.generation + 1, more, arrays);
  // Other old arrays may have these places.
  std::erase_if(old_, [&](const Array& other) {
    if (other.shard + other.state.shards() <= old.shard ||
        other.shard >= old.shard + old.state.shards()) {
      return false;
    }
    give_back(other);
    return true;
  });
  take(arrays);
  // Who sees an id in these places also sees that what was there before has become old.
  std::atomic_thread_fence(std::memory_order_release);
  for (const Array& array : arrays) copy(index_.lines(old.shard, old.state), array);
  for (const Array& array : arrays) {
    for (int shard = array.shard; shard < array.shard + array.state.shards(); ++shard) {
      const auto i = static_cast<std::size_t>(shard);
      used_[i] = live_[i];
      index_.header().shards[i].store(array.state, std::memory_order_release);
    }
  }
  if (old.state.lines > 0) old_.push_back(old);
  array_count_ += arrays.size() - 1;
  if (old_.size() <= array_count_ / kArraysForAnOldOne) return;
  give_back(old_.front());
  old_.pop_front();
}

void Shards::take(const std::vector<Array>& arrays) {
  auto taken = arrays.begin();
  try {
    for (; taken != arrays.end(); ++taken) {
      if (taken->state.lines == 0) continue;
      arena_.take(index_.array_offset(taken->shard, taken->state), taken->bytes());
    }
  } catch (const SystemError&) {
    std::for_each(arrays.begin(), taken, [&](const Array& array) { give_back(array); });
    throw;
  }
}

void Shards::copy(const Lines& from, const Array& array) {
  const Lines to = index_.lines(array.shard, array.state);
  const int last = array.shard + array.state.shards() - 1;
  for_each_between(from, first_of(array.shard), last_of(last),
                   [&](std::uint64_t within, const Slot& slot) {
                     put(to, within, slot.id.load(std::memory_order_relaxed),
                         slot.word.load(std::memory_order_relaxed));
                   });
}

void Shards::give_back(const Array& array) {
  if (array.state.lines == 0) return;
  arena_.give_back(index_.array_offset(array.shard, array.state), array.bytes());
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
