// The writer's side of the index: rows for ids that have none, and shards that grow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "ps/table/arena.hpp"
#include "ps/table/index.hpp"

namespace tutti::ps {

/** Puts a header into new memory, which becomes its beginning. Throws SystemError. */
std::byte* begin_memory(Arena& arena, const TableLayout& layout);

/** Not thread-safe, but for those who read the index meanwhile. */
class Shards {
 public:
  using Counts = std::array<std::int64_t, kIndexShards>;

  /** The header is there. */
  Shards(Arena& arena, const Index& index) : arena_(arena), index_(index) {}

  const Index& index() const { return index_; }

  /** Makes room for so many more ids in each shard. Returns whether slots have moved. Throws
   * SystemError; all that was there still is then. */
  bool make_room(const Counts& more);
  /** Gives an id a slot; there is room, and it has none. Its row is ready to be read. */
  Slot& insert(std::int64_t id, std::uint32_t row);
  void remove(Slot& slot);

  /** Makes room for so many more ids, whose hashes are spread evenly, in whatever order they come.
   * Throws as make_room() does. */
  void expect(std::int64_t ids);

  /** Ids that a shard has. */
  std::int64_t count(int shard) const { return live_[static_cast<std::size_t>(shard)]; }
  std::int64_t count() const;

  /** Calls visit(within, slot) for each id of a shard, in the order in which they lie. */
  template <class Visit>
  void for_each(int shard, const Visit& visit) const {
    for_each_between(shard, first_of(shard), last_of(shard), visit);
  }

  /** The same for those whose IdPlace::within is in that interval, shard by shard. */
  template <class Visit>
  void for_each_between(const Interval& within, const Visit& visit) const {
    if (within.empty()) return;
    for (int shard = shard_of(within.first); shard <= shard_of(within.last); ++shard) {
      for_each_between(shard, std::max(within.first, first_of(shard)),
                       std::min(within.last, last_of(shard)), visit);
    }
  }

  /** The slots whose IdPlace::within is in that interval, in the order of those. */
  std::vector<std::pair<std::uint64_t, Slot*>> sorted(std::uint64_t first,
                                                      std::uint64_t last) const;

  /** How many bytes of addresses a shard needs in each of the two ranges, in a table of so many
   * rows. */
  static std::int64_t array_bytes(std::int64_t most_rows);
  /** The most memory that an index of so many ids takes, its header included, however it has
   * grown. */
  static std::int64_t most_bytes(std::int64_t ids);
  /** Both ranges of all shards. */
  static std::int64_t range_bytes(std::int64_t array_bytes) {
    return std::int64_t{2} * kIndexShards * array_bytes;
  }

 private:
  /** The array of some shards, from `shard` on. */
  struct Array {
    int shard;
    ShardState state;
    std::int64_t bytes() const { return static_cast<std::int64_t>(state.lines * sizeof(Line)); }
  };

  template <class Visit>
  void for_each_between(int shard, std::uint64_t first, std::uint64_t last,
                        const Visit& visit) const {
    for_each_between(index_.lines(shard), first, last, visit);
  }
  template <class Visit>
  void for_each_between(const Lines& lines, std::uint64_t first, std::uint64_t last,
                        const Visit& visit) const {
    if (lines.state.lines == 0) return;
    const Line* const end = lines.home(last);
    bool at_end = false;  // from here on only what had no room at home
    Line* line = lines.home(first);
    for (std::uint32_t looked_at = 0; looked_at < lines.state.lines; ++looked_at) {
      bool has_vacant = false;
      for (Slot& slot : line->slots) {
        const std::uint64_t word = slot.word.load(std::memory_order_relaxed);
        has_vacant = has_vacant || row_of(word) == kVacant;
        if (!has_row(word)) continue;
        const std::uint64_t within = index_.within(slot.id.load(std::memory_order_relaxed));
        if (within >= first && within <= last) visit(within, slot);
      }
      at_end = at_end || line == end;
      if (at_end && has_vacant) return;
      line = lines.after(line);
    }
  }

  /** Whether an array has room for so many more ids in each of its shards. */
  bool has_room(const Array& array, const Counts& more) const;
  /** Appends the arrays that those shards are to have, of that generation, with room for what they
   * have and so many more. */
  void plan(int shard, std::uint32_t span, std::uint32_t generation, const Counts& more,
            std::vector<Array>& arrays) const;
  void write_anew(const Array& old, const Counts& more);
  /** Takes memory for arrays, or for none if this throws. */
  void take(const std::vector<Array>& arrays);
  void copy(const Lines& from, const Array& array);
  void give_back(const Array& array);

  Arena& arena_;
  Index index_;
  Counts live_{};
  Counts used_{};  ///< slots that are not vacant
  std::size_t array_count_ = kIndexShards >> kFirstSpan;
  std::deque<Array> old_;  ///< written anew, and their memory not yet given back
};

}  // namespace tutti::ps
