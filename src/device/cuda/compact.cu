// Ordered compaction on its own, and selection by a threshold, which is nothing else.
#include "device/cuda/compact.cuh"

#include <algorithm>
#include <bit>

namespace tutti::cuda {
namespace {

__global__ void __launch_bounds__(kThreads, tile::kBlocks)
    compact_kernel(const __grid_constant__ Compaction job) {
  compact_tiles(job, [](std::uint32_t) {});
}

std::int64_t tiles_for(std::int64_t count) {
  return std::max<std::int64_t>(blocks_for(count, kChunk), 1);
}

}  // namespace

std::int64_t words_for(std::int64_t count) { return tiles_for(count) + 1; }

Tiles tiles_in(Word* words) { return {words + 1, reinterpret_cast<std::uint32_t*>(words)}; }

unsigned blocks_for_tiles(std::int64_t count) {
  constexpr std::int64_t kMost = 1024;  // more than run at once: who comes late finds nothing left
  return static_cast<unsigned>(std::min(tiles_for(count), kMost));
}

void compact(const Compaction& job, const Stream& stream) {
  const std::int64_t most = std::max(job.source.count, job.other.count);
  launch("compact_kernel", compact_kernel, blocks_for_tiles(most), kThreads, stream, job);
}

void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                  const Selected& selected, Scratch& scratch) {
  const std::int64_t bytes = words_for(count) * static_cast<std::int64_t>(sizeof(Word));
  auto* words = static_cast<Word*>(scratch.take(bytes));
  scratch.stream().fill_with_zeros({words, bytes, DType::u8, scratch.stream().device()});
  Compaction job;
  job.source = {.values = values, .count = count};
  job.addend = residual;
  job.sums = residual;
  job.zero_at = residual;
  job.cut = {std::bit_cast<std::uint32_t>(threshold) & 0x7FFFFFFFU, kAll};  // -0.0 is zero, too
  job.selected = selected;
  job.tiles = tiles_in(words);
  compact(job, scratch.stream());
}

void load_compact() { load_all(compact_kernel); }

}  // namespace tutti::cuda
