// How data are cut for an exchange: a shard for each owner, and windows of shards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/recycled.hpp"
#include "comm/wire.hpp"

namespace tutti {

/** Bytes of `data` cut at `offsets`, each shard in windows of `window` bytes. */
struct Shards {
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
