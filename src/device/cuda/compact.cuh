// Ordered compaction in one pass, with decoupled look-back (Merrill and Garland, "Single-pass
// Parallel Prefix Scan with Decoupled Look-back", NVIDIA 2016): a block counts what it selects
// from its tile, publishes the count, and adds up the counts of the tiles before it, as far back
// as the first that has published the sum of all before it.
#pragma once

#include <cstdint>

#include "device/cuda/block.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"

namespace tutti::cuda {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kAll = UINT32_MAX;

/** The magnitude of an element as an integer: in the order of magnitudes, NaN last. */
__device__ inline std::uint32_t magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFU;
}

/** Selects all elements whose magnitude bits are above `bits`, which are no NaN's, and the first
 * `ties` of those at `bits`. */
struct Cut {
  std::uint32_t bits;
  std::uint32_t ties;
};

/** How many elements were found above a cut, and at it. */
struct Found {
  std::uint32_t above;
  std::uint32_t at;
};

__device__ inline Found operator+(Found a, Found b) { return {a.above + b.above, a.at + b.at}; }
__device__ inline Found operator-(Found a, Found b) { return {a.above - b.above, a.at - b.at}; }

/** How many of these the cut selects. */
__device__ inline std::uint32_t selected_of(Found found, const Cut& cut) {
  return found.above + min(found.at, cut.ties);
}

/** What is selected from. */
struct Source {
  const float* values = nullptr;
  const std::uint32_t* indices = nullptr;       ///< of the values; null: 0, 1, 2, ...
  const std::uint32_t* device_count = nullptr;  ///< if not null, how many values there are,
  std::int64_t count = 0;                       ///< which is at most so many
};

__device__ inline std::int64_t count_of(const Source& source) {
  if (source.device_count == nullptr || *source.device_count > source.count) return source.count;
  return *source.device_count;
}

/** What a tile has published: one word, so that it is read as a whole. */
using Word = unsigned long long;

/** How far the blocks of a compaction have come. All zero at first. */
struct Tiles {
  Word* words;          ///< of each tile
  std::uint32_t* next;  ///< the first tile that no block has taken
};

/** What a compaction reads and writes. */
struct Compaction {
  Source source;
  Source other;                              ///< taken instead,
  const std::uint32_t* use_other = nullptr;  ///< unless this is null or points to 0
  const float* addend = nullptr;             ///< if not null, values are values[i] + addend[i],
  float* sums = nullptr;                     ///< and these are stored here, unless it is null
  float* zero_at = nullptr;                  ///< if not null, becomes zero at what is selected
  const Cut* device_cut = nullptr;           ///< if not null, instead of `cut`
  Cut cut{};
  Selected selected;
  Tiles tiles{};
};

/** How many words the Tiles of `count` elements take, the number of the next tile included. */
std::int64_t words_for(std::int64_t count);
/** Tiles in so many words, which are zero. */
Tiles tiles_in(Word* words);
/** How many blocks share the tiles of `count` elements. */
unsigned blocks_for_tiles(std::int64_t count);

/** Launches it. */
void compact(const Compaction& job, const Stream& stream);

// --- Inside a kernel -----------------------------------------------------------------------------

namespace tile {

// Blocks of a multiprocessor, which hide each other's waits; Turing's has room for four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kBlocks = 4;
#else
inline constexpr int kBlocks = 5;
#endif
inline constexpr int kRounds = kPerThread / kGroup;  // of a warp, a group a lane
inline constexpr int kRoundElements = static_cast<int>(kWarp) * kGroup;
// A lane's elements are the bits of 16, those of a round a nibble; counts are a byte a round.
static_assert(kRounds == 4 && kGroup == 4);
inline constexpr std::uint32_t kEveryElement = 0xFFFFU;
inline constexpr std::uint32_t kEveryRound = 0x01010101U;

inline constexpr unsigned kFlagShift = 62;
inline constexpr Word kNothing = 0;
inline constexpr Word kOwn = 1;   // the tile's own count
inline constexpr Word kUpTo = 2;  // the count of this tile and all before it

__device__ inline Word pack(Word flag, Found found) {
  return flag << kFlagShift | static_cast<Word>(found.above) << 31U | found.at;
}
__device__ inline Word flag_of(Word word) { return word >> kFlagShift; }
__device__ inline Found found_of(Word word) {
  return {static_cast<std::uint32_t>(word >> 31U) & 0x7FFFFFFFU,
          static_cast<std::uint32_t>(word) & 0x7FFFFFFFU};
}
__device__ inline void publish(Word* word, Word value) { atomicExch(word, value); }

/** By one whole warp: what was found in all tiles before `tile`. */
__device__ inline Found look_back(const Word* tiles, int tile) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Found before{0, 0};
  for (int nearest = tile - 1;; nearest -= static_cast<int>(kWarp)) {
    const int mine = nearest - lane;
    Word word = pack(kUpTo, {0, 0});  // in front of the first tile there is nothing
    do {
      if (mine >= 0) word = read_anew(tiles + mine);
    } while (__any_sync(kFullWarp, flag_of(word) == kNothing));
    const unsigned complete = __ballot_sync(kFullWarp, flag_of(word) == kUpTo);
    // Lanes go back in order: those behind the first complete one are in its sum already.
    const int last = complete != 0 ? __ffs(static_cast<int>(complete)) - 1 : 31;
    const Found found = lane <= last ? found_of(word) : Found{0, 0};
    before = before + Found{sum_over_warp(found.above), sum_over_warp(found.at)};
    if (complete != 0) return before;
  }
}

/** Which of a lane's elements are above the cut, and which at it: bit kGroup * round + j. */
struct Marks {
  std::uint32_t above;
  std::uint32_t at;
};

/**
 * Reads a lane's values of a tile, from number `begin` on, keeps the sums, and compares. There are
 * no elements from `count` on. `whole`: the tile ends before that, and its memory takes groups.
 */
__device__ inline Marks mark(const Compaction& job, const float* values, std::int64_t begin,
                             std::int64_t count, bool whole, float limit) {
  Group<float, kGroup> groups[kRounds];
  std::uint32_t there = kEveryElement;
  if (whole) {  // all reads are under way before the first is waited for
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      groups[round] = load<kGroup>(values + begin + round * kRoundElements);
    }
    if (job.addend != nullptr) {
      Group<float, kGroup> addends[kRounds];
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        addends[round] = load<kGroup>(job.addend + begin + round * kRoundElements);
      }
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) groups[round].elements[j] += addends[round].elements[j];
        store(job.sums + begin + round * kRoundElements, groups[round]);
      }
    }
  } else {
    there = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        const std::int64_t i = begin + round * kRoundElements + j;
        float& element = groups[round].elements[j];
        element = 0.0F;
        if (i >= count) continue;
        there |= 1U << (round * kGroup + j);
        element = values[i];
        if (job.addend == nullptr) continue;
        element += job.addend[i];
        job.sums[i] = element;
      }
    }
  }
  Marks marks{0, 0};
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const std::uint32_t bit = 1U << (round * kGroup + j);
      const float magnitude = fabsf(groups[round].elements[j]);
      if (!(magnitude <= limit)) marks.above |= bit;  // NaN is above everything
      if (magnitude == limit) marks.at |= bit;
    }
  }
  return {marks.above & there, marks.at & there};
}

/** How many bits each nibble of 16 bits has, a byte each. */
__device__ inline std::uint32_t count_nibbles(std::uint32_t bits) {
  bits = (bits | bits << 8U) & 0x00FF00FFU;
  bits = (bits | bits << 4U) & 0x0F0F0F0FU;
  bits -= bits >> 1U & 0x05050505U;
  return (bits & 0x03030303U) + (bits >> 2U & 0x03030303U);
}

/** Of the rounds that `rounds` has a one for, the sum of the counts. */
__device__ inline std::uint32_t sum_rounds(std::uint32_t counts, std::uint32_t rounds) {
  return __dp4a(counts, rounds, 0U);
}

/** Of marks of one kind: how many each round of a lane has, of the lanes up to it, and of all. */
struct Counts {
  std::uint32_t own;
  std::uint32_t up_to;
  std::uint32_t warp;
};

__device__ inline Counts count_marks(std::uint32_t marks) {
  Counts counts;
  counts.own = count_nibbles(marks);
  counts.up_to = scan_over_warp(counts.own);  // at most 128 a round: no byte overflows
  counts.warp = __shfl_sync(kFullWarp, counts.up_to, kWarp - 1);
  return counts;
}

/** How many of the marks are before element `at` of this lane. */
__device__ inline std::uint32_t count_before(std::uint32_t marks, const Counts& counts,
                                             unsigned at) {
  constexpr unsigned kRound = kGroup;
  const unsigned shift = at / kRound * 8;
  const std::uint32_t rounds_before = kEveryRound & ((1U << shift) - 1U);
  const std::uint32_t lanes_before = (counts.up_to - counts.own) >> shift & 0xFFU;
  const std::uint32_t before = (1U << at) - 1U;
  const std::uint32_t same_round = 0xFU << at / kRound * kRound;
  return sum_rounds(counts.warp, rounds_before) + lanes_before +
         static_cast<std::uint32_t>(__popc(marks & before & same_round));
}

}  // namespace tile

/**
 * By all blocks of the grid: compacts, and calls note(magnitude bits) for what is selected, whether
 * it has room or not. A block takes one tile after the other.
 */
template <class Note>
__device__ void compact_tiles(const Compaction& job, const Note& note) {
  using namespace tile;
  __shared__ int shared_tile;
  __shared__ Found shared_found[kWarps];
  const Source source = job.use_other != nullptr && *job.use_other != 0 ? job.other : job.source;
  const std::int64_t count = count_of(source);
  const int last_tile = count == 0 ? 0 : static_cast<int>((count - 1) / kChunk);
  const Cut cut = job.device_cut != nullptr ? *job.device_cut : job.cut;
  const bool aligned =
      takes_groups(source.values) && takes_groups(job.addend) && takes_groups(job.sums);
  const float* kept = job.sums != nullptr ? job.sums : source.values;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  for (;;) {
    // Tiles are handed out in their order, so those before one are done or under way.
    if (threadIdx.x == 0) shared_tile = static_cast<int>(atomicAdd(job.tiles.next, 1U));
    __syncthreads();
    const int tile = shared_tile;
    if (tile > last_tile) return;
    const std::int64_t begin = static_cast<std::int64_t>(tile) * kChunk +
                               static_cast<int>(warp) * kRounds * kRoundElements +
                               static_cast<int>(lane) * kGroup;
    const bool whole = aligned && static_cast<std::int64_t>(tile + 1) * kChunk <= count;
    const Marks marks = mark(job, source.values, begin, count, whole, __uint_as_float(cut.bits));
    const Counts above = count_marks(marks.above);
    const Counts at = count_marks(marks.at);
    if (lane == 0) {
      shared_found[warp] = {sum_rounds(above.warp, kEveryRound), sum_rounds(at.warp, kEveryRound)};
    }
    __syncthreads();

    if (warp == 0) {
      const Found own = lane < kWarps ? shared_found[lane] : Found{0, 0};
      const Found up_to{scan_over_warp(own.above), scan_over_warp(own.at)};
      const Found all{__shfl_sync(kFullWarp, up_to.above, kWarp - 1),
                      __shfl_sync(kFullWarp, up_to.at, kWarp - 1)};
      if (tile > 0 && lane == 0) publish(job.tiles.words + tile, pack(kOwn, all));
      const Found before = look_back(job.tiles.words, tile);
      if (lane == 0) publish(job.tiles.words + tile, pack(kUpTo, before + all));
      if (lane == 0 && tile == last_tile) *job.selected.count = selected_of(before + all, cut);
      if (lane < kWarps) shared_found[lane] = before + (up_to - own);
    }
    __syncthreads();

    // The rare ones. Ties are taken in order: behind the last of them nobody looks for more.
    const Found before = shared_found[warp];
    std::uint32_t pending = marks.above | (before.at < cut.ties ? marks.at : 0U);
    while (pending != 0) {
      const auto i = static_cast<unsigned>(__ffs(static_cast<int>(pending)) - 1);
      pending &= pending - 1U;
      Found found{before.above + count_before(marks.above, above, i), before.at};
      if (at.warp != 0) {
        found.at += count_before(marks.at, at, i);
        if ((marks.at >> i & 1U) != 0 && found.at >= cut.ties) continue;
      }
      const auto number =
          static_cast<std::uint32_t>(begin) + i / kGroup * kRoundElements + i % kGroup;
      const float value = kept[number];
      note(magnitude_bits(value));
      const std::uint32_t place = selected_of(found, cut);
      if (place >= job.selected.capacity) continue;  // what has no room stays in the residual
      const std::uint32_t index = source.indices != nullptr ? source.indices[number] : number;
      if (job.zero_at != nullptr) job.zero_at[index] = 0.0F;
      job.selected.indices[place] = index;
      job.selected.values[place] = value;
    }
  }
}

/** What was found in all tiles, `last` being the last. */
__device__ inline Found found_in_all(const Tiles& tiles, int last) {
  return tile::found_of(read_anew(tiles.words + last));
}

}  // namespace tutti::cuda
