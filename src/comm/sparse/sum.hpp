// Adds sparse vectors up, block by block, in the order in which they are given.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "tutti/dtype.hpp"

namespace tutti {

/** Elements that are added up together: their sums stay in the first cache. */
inline constexpr std::int64_t kSumBlock = 4096;

/** How many of `count` values are not zero. */
std::int64_t entries_of(const float* values, std::int64_t count);
/** The fraction of `count` elements that `entries` are. */
double density_of(std::int64_t entries, std::int64_t count);

/** Divides the sums of a block by `divisor` and makes NaNs the quiet one; how many are not zero. */
std::int64_t finish_sums(float* sums, std::int64_t count, std::int64_t divisor);

/**
 * out[i] = the sum of the sources' elements at i, divided by `divisor`, for begin <= i < end.
 * Returns how many are not zero. Sources are cursors (packet.hpp).
 */
template <class Cursor>
std::int64_t sum_dense(std::span<Cursor> sources, float* out, std::int64_t begin, std::int64_t end,
                       std::int64_t divisor) {
  std::int64_t entries = 0;
  for (std::int64_t at = begin; at < end; at += kSumBlock) {
    const std::int64_t stop = std::min(at + kSumBlock, end);
    std::fill(out + at, out + stop, 0.0F);
    for (Cursor& source : sources) {
      source.take_below(stop, [out](std::uint32_t index, float value) { out[index] += value; });
    }
    entries += finish_sums(out + at, stop - at, divisor);
  }
  return entries;
}

/** The sums of one block, and which of its elements have any. */
struct SumBlock {
  static constexpr std::int64_t kMarkBits = 64;
  std::array<float, kSumBlock> sums{};  ///< zero between two blocks
  std::array<std::uint64_t, kSumBlock / kMarkBits> marks{};
};

/** put(index, sum) for every index below `end` at which a source has an element, ascending. */
template <class Cursor, class Put>
void sum_sparse(std::span<Cursor> sources, std::int64_t end, SumBlock& block, const Put& put) {
  for (;;) {
    std::int64_t first = end;
    for (const Cursor& source : sources) first = std::min(first, source.next());
    if (first >= end) return;
    const std::int64_t begin = first / kSumBlock * kSumBlock;
    for (Cursor& source : sources) {
      source.take_below(std::min(begin + kSumBlock, end), [&](std::uint32_t index, float value) {
        const std::uint64_t at = index % kSumBlock;
        block.sums[at] += value;
        block.marks[at / SumBlock::kMarkBits] |= std::uint64_t{1} << at % SumBlock::kMarkBits;
      });
    }
    for (std::size_t word = 0; word < block.marks.size(); ++word) {
      for (std::uint64_t marks = block.marks[word]; marks != 0; marks &= marks - 1) {
        const std::size_t at =
            word * SumBlock::kMarkBits + static_cast<std::size_t>(std::countr_zero(marks));
        put(static_cast<std::uint32_t>(begin + static_cast<std::int64_t>(at)), block.sums[at]);
        block.sums[at] = 0.0F;
      }
      block.marks[word] = 0;
    }
  }
}

}  // namespace tutti
