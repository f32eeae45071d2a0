// What the threads of a warp, those of a block and the blocks of a grid find out together.
#pragma once

#include <cstdint>

#include "device/cuda/launch.cuh"

namespace tutti::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kFullWarp = 0xFFFFFFFFU;
inline constexpr int kWarps = kThreads / static_cast<int>(kWarp);

/** By whole warps: the sum of the values of all lanes. */
__device__ inline std::uint32_t sum_over_warp(std::uint32_t value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

/** By whole warps: the sum of the values of this lane and those before it. */
__device__ inline std::uint32_t scan_over_warp(std::uint32_t value) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const std::uint32_t before = __shfl_up_sync(kFullWarp, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

/** By a block of kThreads: the sum of the values of this thread and those before it. */
__device__ inline std::uint32_t scan_over_block(std::uint32_t value) {
  __shared__ std::uint32_t sums[kWarps];
  const unsigned warp = threadIdx.x / kWarp;
  const std::uint32_t in_warp = scan_over_warp(value);
  if (threadIdx.x % kWarp == kWarp - 1) sums[warp] = in_warp;
  __syncthreads();
  std::uint32_t before = 0;
  for (unsigned i = 0; i < warp; ++i) before += sums[i];
  __syncthreads();  // or the next call would write what is still read
  return before + in_warp;
}

/**
 * By all threads of `blocks` blocks, each once: true in the block that comes here last, which sees
 * all that the others have written. `ended` is zero at first, and at the end.
 */
__device__ inline bool ends_last(std::uint32_t* ended, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(ended, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

/** Reads what other blocks of this launch have written. */
template <class T>
__device__ T read_anew(const T* from) {
  return *static_cast<const volatile T*>(from);
}

}  // namespace tutti::cuda
