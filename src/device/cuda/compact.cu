// Ordered compaction in one pass, with decoupled look-back (Merrill and Garland, "Single-pass
// Parallel Prefix Scan with Decoupled Look-back", NVIDIA 2016): a block counts what it selects
// from its tile, publishes the count, and adds up the counts of the tiles before it, as far back
// as the first that has published the sum of all before it.
#include "device/cuda/compact.cuh"

#include <algorithm>
#include <bit>

#include "device/cuda/launch.cuh"

namespace tutti::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kFullWarp = 0xFFFFFFFFU;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kBlocks = 4;                    // of a multiprocessor: they hide each other's waits
constexpr int kRounds = kPerThread / kGroup;  // of a warp, a group a lane
constexpr int kRoundElements = static_cast<int>(kWarp) * kGroup;

/** How many elements were found above the cut, and at it. */
struct Found {
  std::uint32_t above;
  std::uint32_t at;
};

__device__ Found operator+(Found a, Found b) { return {a.above + b.above, a.at + b.at}; }

/** What a tile has published: one word, so that it is read as a whole. */
using Word = unsigned long long;
constexpr unsigned kFlagShift = 62;
constexpr Word kNothing = 0;
constexpr Word kOwn = 1;   // the tile's own count
constexpr Word kUpTo = 2;  // the count of this tile and all before it

__device__ Word pack(Word flag, Found found) {
  return flag << kFlagShift | static_cast<Word>(found.above) << 31U | found.at;
}
__device__ Word flag_of(Word word) { return word >> kFlagShift; }
__device__ Found found_of(Word word) {
  return {static_cast<std::uint32_t>(word >> 31U) & 0x7FFFFFFFU,
          static_cast<std::uint32_t>(word) & 0x7FFFFFFFU};
}

__device__ Word read(const Word* word) { return *static_cast<const volatile Word*>(word); }
__device__ void publish(Word* word, Word value) { atomicExch(word, value); }

__device__ Found sum_over_warp(Found found) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    found.above += __shfl_xor_sync(kFullWarp, found.above, distance);
    found.at += __shfl_xor_sync(kFullWarp, found.at, distance);
  }
  return found;
}

/** By one whole warp: what was found in all tiles before `tile`. */
__device__ Found look_back(const Word* tiles, int tile) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Found before{0, 0};
  for (int nearest = tile - 1;; nearest -= static_cast<int>(kWarp)) {
    const int mine = nearest - lane;
    Word word = pack(kUpTo, {0, 0});  // in front of the first tile there is nothing
    do {
      if (mine >= 0) word = read(tiles + mine);
    } while (__any_sync(kFullWarp, flag_of(word) == kNothing));
    const unsigned complete = __ballot_sync(kFullWarp, flag_of(word) == kUpTo);
    // Lanes go back in order: those behind the first complete one are in its sum already.
    const int last = complete != 0 ? __ffs(static_cast<int>(complete)) - 1 : 31;
    const Found none{0, 0};
    before = before + sum_over_warp(lane <= last ? found_of(word) : none);
    if (complete != 0) return before;
  }
}

/** Which elements of a group are above the cut, and which at it. */
struct Marks {
  bool above[kGroup];
  bool at[kGroup];
};

/** Of elements from number `first` on, of which there are none from `count` on. */
__device__ Marks mark(const Group<float, kGroup>& group, std::int64_t first, std::int64_t count,
                      const Cut& cut) {
  Marks marks;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const std::uint32_t bits = magnitude_bits(group.elements[j]);
    marks.above[j] = first + j < count && bits > cut.bits;
    marks.at[j] = first + j < count && bits == cut.bits;
  }
  return marks;
}

/** By one whole warp: how many `lanes` have marked. */
__device__ Found count_marks(const Marks& marks, unsigned lanes) {
  Found found{0, 0};
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    found.above += __popc(__ballot_sync(kFullWarp, marks.above[j]) & lanes);
    found.at += __popc(__ballot_sync(kFullWarp, marks.at[j]) & lanes);
  }
  return found;
}

/**
 * A lane's values of a tile, from number `begin` on; zero from `count` on. `whole`: the tile ends
 * before that, and its memory takes groups.
 */
__device__ void take(const Compaction& job, std::int64_t begin, std::int64_t count, bool whole,
                     Group<float, kGroup> (&groups)[kRounds]) {
  if (whole) {  // all reads are under way before the first is waited for
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      groups[round] = load<kGroup>(job.values + begin + round * kRoundElements);
    }
    if (job.addend == nullptr) return;
    Group<float, kGroup> addends[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      addends[round] = load<kGroup>(job.addend + begin + round * kRoundElements);
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) groups[round].elements[j] += addends[round].elements[j];
    }
    return;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const std::int64_t i = begin + round * kRoundElements + j;
      groups[round].elements[j] = i < count ? job.values[i] : 0.0F;
      if (job.addend != nullptr && i < count) groups[round].elements[j] += job.addend[i];
    }
  }
}

/** Stores what take() has taken. */
__device__ void keep(const Compaction& job, std::int64_t begin, std::int64_t count, bool whole,
                     const Group<float, kGroup> (&groups)[kRounds]) {
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t first = begin + round * kRoundElements;
    if (whole) {
      store(job.sums + first, groups[round]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (first + j < count) job.sums[first + j] = groups[round].elements[j];
    }
  }
}

/** Writes what is selected of a group, before which `before` was found. */
__device__ void select(const Compaction& job, const Group<float, kGroup>& group, std::int64_t first,
                       const Marks& marks, Found before, const Cut& cut) {
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (marks.above[j] || (marks.at[j] && before.at < cut.ties)) {
      const std::uint32_t place = before.above + min(before.at, cut.ties);
      const std::uint32_t index =
          job.indices != nullptr ? job.indices[first + j] : static_cast<std::uint32_t>(first + j);
      if (place < job.selected.capacity) {  // what has no room stays in the residual
        if (job.zero_at != nullptr) job.zero_at[index] = 0.0F;
        job.selected.indices[place] = index;
        job.selected.values[place] = group.elements[j];
      }
    }
    before.above += marks.above[j] ? 1 : 0;
    before.at += marks.at[j] ? 1 : 0;
  }
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    compact_kernel(const __grid_constant__ Compaction job, unsigned* next_tile, Word* tiles) {
  if (!job.condition.holds()) return;
  // Tiles are handed out in the order in which blocks start, so those before it are under way.
  __shared__ int shared_tile;
  __shared__ Found shared_found[kWarps];
  __shared__ Found shared_before;
  if (threadIdx.x == 0) shared_tile = static_cast<int>(atomicAdd(next_tile, 1U));
  __syncthreads();
  const int tile = shared_tile;
  std::int64_t count = job.count;
  if (job.device_count != nullptr && *job.device_count < count) count = *job.device_count;
  const std::int64_t last_tile = count == 0 ? 0 : (count - 1) / kChunk;
  if (tile > last_tile) return;
  const Cut cut = job.device_cut != nullptr ? *job.device_cut : job.cut;

  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned lower_lanes = (1U << lane) - 1U;
  const std::int64_t begin = static_cast<std::int64_t>(tile) * kChunk +
                             warp * kRounds * kRoundElements + static_cast<int>(lane) * kGroup;
  const bool whole = static_cast<std::int64_t>(tile + 1) * kChunk <= count &&
                     takes_groups(job.values) && takes_groups(job.addend) && takes_groups(job.sums);
  Group<float, kGroup> groups[kRounds];
  take(job, begin, count, whole, groups);
  if (job.sums != nullptr) keep(job, begin, count, whole, groups);
  Found own{0, 0};
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const Marks marks = mark(groups[round], begin + round * kRoundElements, count, cut);
    own = own + count_marks(marks, kFullWarp);
  }
  if (lane == 0) shared_found[warp] = own;
  __syncthreads();

  if (warp == 0) {
    Found all{0, 0};
    for (int other = 0; other < kWarps; ++other) all = all + shared_found[other];
    if (tile > 0 && lane == 0) publish(tiles + tile, pack(kOwn, all));
    const Found before = look_back(tiles, tile);
    if (lane == 0) {
      publish(tiles + tile, pack(kUpTo, before + all));
      shared_before = before;
      if (tile == last_tile) {
        const Found total = before + all;
        *job.selected.count = total.above + min(total.at, cut.ties);
      }
    }
  }
  __syncthreads();

  Found found = shared_before;
  for (int other = 0; other < warp; ++other) found = found + shared_found[other];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t first = begin + round * kRoundElements;
    const Marks marks = mark(groups[round], first, count, cut);
    select(job, groups[round], first, marks, found + count_marks(marks, lower_lanes), cut);
    found = found + count_marks(marks, kFullWarp);
  }
}

}  // namespace

void compact(const Compaction& compaction, const Stream& stream) {
  const std::int64_t tiles = std::max<std::int64_t>(blocks_for(compaction.count, kChunk), 1);
  // A word for each tile, and behind them the number of the next tile.
  const Buffer memory = stream.allocate((tiles + 1) * static_cast<std::int64_t>(sizeof(Word)));
  stream.fill_with_zeros(memory.view(DType::u8));
  auto* words = static_cast<Word*>(memory.data());
  launch("compact_kernel", compact_kernel, static_cast<unsigned>(tiles), kThreads, stream,
         compaction, reinterpret_cast<unsigned*>(words + tiles), words);
}

void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                  const Selected& selected, const Stream& stream) {
  Compaction job;
  job.values = values;
  job.addend = residual;
  job.sums = residual;
  job.zero_at = residual;
  job.count = count;
  job.cut = {std::bit_cast<std::uint32_t>(threshold) & 0x7FFFFFFFU, kAll};  // -0.0 is zero, too
  job.selected = selected;
  compact(job, stream);
}

}  // namespace tutti::cuda
