// A bound for the k-th largest magnitude, from a sample: one block reads it, keeps it in registers,
// and finds the bound bit by bit, so that no distribution of the values is slower than another.
#pragma once

#include <cstdint>

#include "device/cuda/block.cuh"
#include "device/cuda/compact.cuh"
#include "device/cuda/sample_place.hpp"

namespace tutti::cuda {

inline constexpr int kSamplers = 512;                                     ///< threads of the block
inline constexpr int kOfSampler = static_cast<int>(kSample) / kSamplers;  ///< elements of a thread

/** A thread's part of the sample; what is not there has no magnitude. */
__device__ inline void take_sample(const float* values, const float* addend, std::int64_t count,
                                   std::uint32_t (&magnitudes)[kOfSampler]) {
  float sample[kOfSampler];
  // All reads are under way before the first is waited for.
#pragma unroll
  for (int j = 0; j < kOfSampler; ++j) {
    const std::int64_t i = j * kSamplers + static_cast<int>(threadIdx.x);
    sample[j] = i < count ? values[sample_place(i, count)] : 0.0F;
  }
#pragma unroll
  for (int j = 0; j < kOfSampler; ++j) {
    const std::int64_t i = j * kSamplers + static_cast<int>(threadIdx.x);
    if (addend != nullptr && i < count) sample[j] += addend[sample_place(i, count)];
    magnitudes[j] = magnitude_bits(sample[j]);
  }
}

/**
 * By the block: the cut that selects the `rank` largest of its magnitudes, of which there are as
 * many; or all that are not finite, if these are more.
 */
__device__ inline Cut cut_at(const std::uint32_t (&magnitudes)[kOfSampler], std::uint32_t rank) {
  constexpr int kBits = 31;
  __shared__ std::uint32_t counts[kBits];
  if (threadIdx.x < kBits) counts[threadIdx.x] = 0;
  __syncthreads();
  Cut cut{0, 0};             // the largest number that `rank` magnitudes reach, as far as known
  std::uint32_t larger = 0;  // than the last that fewer reach
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const std::uint32_t next = cut.bits | 1U << static_cast<unsigned>(bit);
    std::uint32_t own = 0;
#pragma unroll
    for (const std::uint32_t magnitude : magnitudes) own += magnitude >= next ? 1 : 0;
    own = sum_over_warp(own);
    if (threadIdx.x % kWarp == 0) atomicAdd(counts + bit, own);
    __syncthreads();
    const std::uint32_t reach = counts[bit];
    if (reach == rank) {  // exactly these
      cut.bits = next - 1;
      larger = rank;
      break;
    }
    if (reach > rank) {
      cut.bits = next;
    } else {
      larger = reach;
    }
  }
  cut.ties = rank - larger;
  if (cut.bits >= kInfinityBits) return {kInfinityBits, kAll};
  return cut;
}

}  // namespace tutti::cuda
