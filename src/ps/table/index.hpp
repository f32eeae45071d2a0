// The index of a table: in which row an id is. One writes, any number of processes read meanwhile.
//
// The ids of a shard lie in lines of four slots, by open addressing: an id belongs into the line
// that its hash says, or else into the next one that has a vacant slot. Lines are in the order of
// the hashes whatever their number, so a shard can grow by any factor: a new array of lines is
// written from the first to the last, and then named in the header, with the next generation. Two
// ranges of addresses take turns for that. Whoever has searched looks at the generation again and,
// if need be, repeats the search: nobody has to say that it is reading, and one that is killed
// leaves nothing.
//
// Neighbouring shards share an array, so that it fills huge pages: the fewer the larger the table
// is, since an array that is written anew holds up who waits for the server.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/table/place.hpp"

namespace tutti::ps {

inline constexpr std::uint32_t kVacant = 0;
inline constexpr std::uint32_t kRemoved = UINT32_MAX;  ///< vacant once the shard is written anew
inline constexpr std::uint64_t kVersion = std::uint64_t{1} << 32U;

/**
 * An id and its row. `word` has 1 + the row in its lower half, and a version in the upper: odd
 * while the row is being changed (only with consistent rows), another one after each change and
 * when the row is removed.
 */
struct Slot {
  std::atomic<std::int64_t> id;
  std::atomic<std::uint64_t> word;
};

constexpr std::uint32_t row_of(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
constexpr bool has_row(std::uint64_t word) {
  return row_of(word) != kVacant && row_of(word) != kRemoved;
}

struct alignas(64) Line {
  static constexpr std::uint32_t kSlots = 4;
  std::array<Slot, kSlots> slots;
};
static_assert(sizeof(Line) == 64);

inline constexpr int kIndexShards = 256;
inline constexpr int kShardBits = 8;
inline constexpr std::uint32_t kFirstSpan = 4;

/** The array in use of a shard, and of all others of 2^span that begin with a multiple of that. */
struct ShardState {
  static constexpr std::uint32_t kMostLines = (std::uint32_t{1} << 28U) - 1;
  static constexpr std::uint32_t kMostSpan = 15;
  std::uint32_t generation = 0;
  std::uint32_t lines : 28 = 0;
  std::uint32_t span : 4 = kFirstSpan;
  bool operator==(const ShardState&) const = default;

  int shards() const { return 1 << span; }
  int first_shard(int shard) const { return shard >> span << span; }
};
static_assert(sizeof(ShardState) == 8);

/** Where the parts of what a table shares with its readers lie, in bytes from its beginning. */
struct TableLayout {
  std::int64_t dim = 0;
  std::int64_t most_rows = 0;
  std::int64_t array_bytes = 0;  ///< a shard's share of each of two ranges of addresses
  std::int64_t index_offset = 0;
  std::int64_t weights_offset = 0;
  std::int64_t bytes = 0;
};

/** What it begins with. */
struct TableHeader {
  TableLayout layout;
  alignas(64) std::array<std::atomic<ShardState>, kIndexShards> shards{};
};
static_assert(std::atomic<ShardState>::is_always_lock_free);

constexpr int shard_of(std::uint64_t within) { return static_cast<int>(within >> 56U); }
/** The least and the greatest IdPlace::within of a shard. */
constexpr std::uint64_t first_of(int shard) { return static_cast<std::uint64_t>(shard) << 56U; }
constexpr std::uint64_t last_of(int shard) { return first_of(shard) + (~std::uint64_t{0} >> 8U); }

/** The lines of shards that share them, as they were at some time. */
struct Lines {
  Line* first = nullptr;
  ShardState state;

  Line* home(std::uint64_t within) const {
    __extension__ using Wide = unsigned __int128;
    const std::uint64_t part = within << (kShardBits - state.span);
    return first + static_cast<std::uint64_t>((static_cast<Wide>(part) * state.lines) >> 64U);
  }
  Line* after(Line* line) const { return line + 1 == first + state.lines ? first : line + 1; }
};

class Index {
 public:
  /** Memory that has its header. The ids are one server's of so many. */
  Index(std::byte* base, Split split, int servers)
      : base_(base),
        header_(reinterpret_cast<TableHeader*>(base)),
        index_offset_(header_->layout.index_offset),
        array_bytes_(header_->layout.array_bytes),
        split_(split),
        servers_(servers) {}

  TableHeader& header() const { return *header_; }
  std::uint64_t within(std::int64_t id) const { return place_of(id, split_, servers_).within; }

  ShardState state(int shard) const {
    return header_->shards[static_cast<std::size_t>(shard)].load(std::memory_order_acquire);
  }
  std::int64_t array_offset(int shard, ShardState state) const {
    const std::int64_t range = std::int64_t{state.generation % 2} * kIndexShards;
    return index_offset_ + (range + state.first_shard(shard)) * array_bytes_;
  }
  Lines lines(int shard, ShardState state) const {
    return {reinterpret_cast<Line*>(base_ + array_offset(shard, state)), state};
  }
  Lines lines(int shard) const { return lines(shard, state(shard)); }

  /** What a search has come to: a slot with a row, and what it held; or none. */
  struct Found {
    Slot* slot = nullptr;
    std::uint64_t word = 0;
  };

  /** Looks into the home line of an id, where most are, without a branch for each slot. */
  static Found look(Line& home, std::int64_t id) {
    const auto is_at = [&](unsigned i) {
      return static_cast<unsigned>(home.slots[i].id.load(std::memory_order_relaxed) == id) << i;
    };
    const unsigned places = is_at(0) | is_at(1) | is_at(2) | is_at(3);
    if (places == 0) return {};
    Slot& slot = home.slots[static_cast<std::size_t>(std::countr_zero(places))];
    const std::uint64_t word = slot.word.load(std::memory_order_acquire);
    return has_row(word) ? Found{&slot, word} : Found{};
  }

  /** Looks at all slots where an id may be. */
  static Found search(const Lines& lines, Line* home, std::int64_t id) {
    Line* line = home;
    for (std::uint32_t looked_at = 0; looked_at < lines.state.lines; ++looked_at) {
      for (Slot& slot : line->slots) {
        const std::uint64_t word = slot.word.load(std::memory_order_acquire);
        if (row_of(word) == kVacant) return {};
        if (has_row(word) && slot.id.load(std::memory_order_relaxed) == id) return {&slot, word};
      }
      line = lines.after(line);
    }
    return {};
  }

 private:
  std::byte* base_;
  TableHeader* header_;
  std::int64_t index_offset_;
  std::int64_t array_bytes_;
  Split split_;
  int servers_;
};

/** What a search has come to. */
struct IndexResult {
  Index::Found found;
  ShardState state;  ///< what was searched
  int shard;
};

/**
 * Searches many ids at a time. An id waits for up to three cache lines, one after the other: two of
 * the index, and its row. So groups of ids follow each other from step to step, and in each one ask
 * for the memory of the next.
 */
class IndexSearch {
 public:
  explicit IndexSearch(const Index& index) : index_(index) {}

  /** Calls found(word) as soon as an id is, and later, in their order, done(i, result) for all. */
  template <class IsFound, class IsDone>
  void run(std::span<const std::int64_t> ids, const IsFound& found, const IsDone& done) {
    const std::size_t end = ids.size() + (kGroups - 1) * kGroup;
    for (std::size_t start = 0; start < end; start += kGroup) {
      if (start < ids.size()) begin(group_at(start), part(ids, start));
      if (has_group(ids, start, 1)) {
        look(group_at(start - kGroup), part(ids, start - kGroup), found);
      }
      if (has_group(ids, start, 2)) {
        look_further(group_at(start - 2 * kGroup), part(ids, start - 2 * kGroup), found);
      }
      if (has_group(ids, start, 3)) {
        const std::size_t first = start - 3 * kGroup;
        const Group& group = group_at(first);
        const std::size_t count = part(ids, first).size();
        for (std::size_t i = 0; i < count; ++i) done(first + i, group.results[i]);
      }
    }
  }

 private:
  static constexpr std::size_t kGroup = 32;
  static constexpr std::size_t kGroups = 4;

  struct Group {
    std::array<IndexResult, kGroup> results;
    std::array<Line*, kGroup> homes;
    std::array<std::uint8_t, kGroup> pending;  ///< those that are not at home
    std::size_t pending_count;
  };

  Group& group_at(std::size_t start) { return groups_[start / kGroup % kGroups]; }
  static bool has_group(std::span<const std::int64_t> ids, std::size_t start, std::size_t back) {
    return start >= back * kGroup && start - back * kGroup < ids.size();
  }
  static std::span<const std::int64_t> part(std::span<const std::int64_t> ids, std::size_t start) {
    return ids.subspan(start, std::min(kGroup, ids.size() - start));
  }

  void begin(Group& group, std::span<const std::int64_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint64_t within = index_.within(ids[i]);
      const int shard = shard_of(within);
      const Lines lines = index_.lines(shard);
      group.homes[i] = lines.state.lines == 0 ? &vacant_ : lines.home(within);
      __builtin_prefetch(group.homes[i]);
      group.results[i].state = lines.state;
      group.results[i].shard = shard;
    }
  }

  template <class IsFound>
  void look(Group& group, std::span<const std::int64_t> ids, const IsFound& found) {
    group.pending_count = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Index::Found first = Index::look(*group.homes[i], ids[i]);
      group.results[i].found = first;
      if (first.slot != nullptr) {
        found(first.word);
      } else {
        __builtin_prefetch(group.homes[i] + 1);
        group.pending[group.pending_count++] = static_cast<std::uint8_t>(i);
      }
    }
  }

  template <class IsFound>
  void look_further(Group& group, std::span<const std::int64_t> ids, const IsFound& found) {
    for (std::size_t p = 0; p < group.pending_count; ++p) {
      const std::size_t i = group.pending[p];
      IndexResult& result = group.results[i];
      const Lines lines = index_.lines(result.shard, result.state);
      result.found = Index::search(lines, group.homes[i], ids[i]);
      if (result.found.slot != nullptr) found(result.found.word);
    }
  }

  Index index_;    // a copy, which nobody else can change
  Line vacant_{};  // stands for those of a shard that has none
  std::array<Group, kGroups> groups_;
};

/** Calls found(word) for each id that is there, and then done(i, result) for all in their order. A
 * few are searched one after the other, which touches less memory. */
template <class IsFound, class IsDone>
void search_index(const Index& index, std::span<const std::int64_t> ids, const IsFound& found,
                  const IsDone& done) {
  constexpr std::size_t kFew = 4;
  if (ids.size() > kFew) {
    IndexSearch(index).run(ids, found, done);
    return;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t within = index.within(ids[i]);
    const int shard = shard_of(within);
    const Lines lines = index.lines(shard);
    IndexResult result{{}, lines.state, shard};
    if (lines.state.lines > 0) result.found = Index::search(lines, lines.home(within), ids[i]);
    if (result.found.slot != nullptr) found(result.found.word);
    done(i, result);
  }
}

}  // namespace tutti::ps
