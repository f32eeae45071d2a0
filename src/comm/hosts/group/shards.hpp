// How data are cut for an exchange: a shard for each owner, and windows of shards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/recycled.hpp"
#include "comm/wire.hpp"

namespace tutti {

/** Of memory for what arrives in a call, in bytes, with up to 4096 members. */
inline constexpr std::int64_t kMostScratch = std::int64_t{32} * 1024 * 1024;

/** Bytes of `data` cut at `offsets`, each shard in windows of `window` bytes. */
struct Shards {
  static constexpr std::int64_t kCacheLine = 64;  ///< in bytes

  std::byte* data;
  RecycledVector<std::int64_t> offsets;
  std::int64_t window;

  std::int64_t longest() const {
    std::int64_t longest = 0;
    for (std::size_t i = 1; i < offsets.size(); ++i) {
      longest = std::max(longest, offsets[i] - offsets[i - 1]);
    }
    return longest;
  }
  std::int64_t windows() const { return (longest() + window - 1) / window; }
  /** Window `number` of the shard of `owner`, which may be shorter than others, or empty. */
  std::span<std::byte> part(int owner, std::int64_t number) const {
    const auto at = static_cast<std::size_t>(owner);
    const std::int64_t begin = std::min(offsets[at] + number * window, offsets[at + 1]);
    const std::int64_t end = std::min(begin + window, offsets[at + 1]);
    return {data + begin, static_cast<std::size_t>(end - begin)};
  }
};

/** Offsets of shards of equal length, in whole cache lines, one for each of `members` but
 * `without`, whose shard is empty; a negative one leaves out nobody. */
inline RecycledVector<std::int64_t> even_offsets(std::int64_t bytes, int members, int without) {
  constexpr std::int64_t kLine = Shards::kCacheLine;
  const int owners = without < 0 ? members : members - 1;
  const std::int64_t lines = (bytes + kLine - 1) / kLine;
  const std::int64_t share = (lines + owners - 1) / owners * kLine;
  RecycledVector<std::int64_t> offsets{0};
  for (int owner = 0; owner < members; ++owner) {
    offsets.push_back(std::min(bytes, offsets.back() + (owner == without ? 0 : share)));
  }
  return offsets;
}

/** A window between `members` members, in bytes: at most a piece, which MPI sends without asking.
 * The same for all dtypes: whole elements, whole cache lines. */
constexpr std::int64_t window_for(int members) {
  constexpr std::int64_t kSmallest = 1024;
  constexpr std::int64_t kLine = Shards::kCacheLine;
  static_assert(Wire::kUnderWay * 4096 * kSmallest <= kMostScratch);
  const std::int64_t fair = kMostScratch / (Wire::kUnderWay * members) / kLine * kLine;
  return std::clamp(fair, kSmallest, Wire::kPiece);
}
/** A long window: one piece over a connection, otherwise as many as are posted at once. */
inline constexpr std::int64_t kLongWindow = Wire::kLongPiece;
static_assert(kLongWindow <= Wire::kPosted * Wire::kPiece);
/** A long window where the ranks of a host meet for each. */
inline constexpr std::int64_t kSharedWindow = std::int64_t{128} * 1024;

/** How many windows of `window` bytes leave before the first is added up. Of long ones two: one is
 * added while another travels. */
constexpr std::int64_t windows_under_way(std::int64_t window) {
  return window <= Wire::kPiece ? Wire::kUnderWay : 2;
}

/** The windows of an exchange: how many, how long, and how many leave before the first is added
 * up. */
struct WindowPlan {
  std::int64_t count;
  std::int64_t bytes;
  std::int64_t under_way = windows_under_way(bytes);
};

}  // namespace tutti
