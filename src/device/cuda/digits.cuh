// Radix select, a digit at a time: how many elements have which digit, and which of the digits the
// element of a rank has.
#pragma once

#include <cstdint>

#include "device/cuda/block.cuh"
#include "device/cuda/compact.cuh"

namespace tutti::cuda {

inline constexpr int kBins = 2048;
inline constexpr int kDigits = 3;  ///< of 11, 10 and 10 bits, which make the 31 of a magnitude

/** The number of the lowest bit of a digit. */
__device__ constexpr unsigned shift_of(std::uint32_t digit) { return (kDigits - 1 - digit) * 10U; }

/** A search for the element of a rank, between two digits. */
struct Search {
  std::uint32_t bits;   ///< the digits found so far
  std::uint32_t rank;   ///< of the element among those with these digits; the largest has rank 1
  std::uint32_t digit;  ///< the next; kDigits at the end
};

/** The digit by which a search that has got so far looks at a magnitude. */
__device__ inline std::uint32_t bin_of(std::uint32_t bits, std::uint32_t digit) {
  return bits >> shift_of(digit) & (digit == 0 ? kBins - 1U : kBins / 2 - 1U);
}

/** By a block of kThreads: makes its bins zero. Behind it comes a barrier. */
__device__ inline void clear_bins(std::uint32_t* bins) {
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) bins[bin] = 0;
  __syncthreads();
}

/** By a block: adds its bins to those of all blocks. In front of it comes a barrier. */
__device__ inline void add_bins(const std::uint32_t* bins, std::uint32_t* all) {
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
    if (bins[bin] != 0) atomicAdd(all + bin, bins[bin]);
  }
}

/** By the last block: reads those of all. */
__device__ inline void read_bins(const std::uint32_t* all, std::uint32_t* bins) {
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
    bins[bin] = read_anew(all + bin);
  }
  __syncthreads();
}

/** Counts the elements that have the digits found so far by their next digit, as block number
 * `block` of `blocks`. */
__device__ inline void count_digits(const Source& source, const Search& search, std::uint32_t* bins,
                                    unsigned block, unsigned blocks) {
  const unsigned above = shift_of(search.digit) + (search.digit == 0 ? 11U : 10U);  // at most 31
  const std::uint32_t wanted = search.bits >> above;
  const std::int64_t thread = static_cast<std::int64_t>(block) * kThreads + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(blocks) * kThreads;
  for_each_group<kGroup>(count_of(source), takes_groups(source.values), thread, threads,
                         [&]<int kN>(std::int64_t at) {
                           for (const float value : load<kN>(source.values + at).elements) {
                             const std::uint32_t bits = magnitude_bits(value);
                             if (bits >> above == wanted)
                               atomicAdd(bins + bin_of(bits, search.digit), 1U);
                           }
                         });
}

/** By a block of kThreads: one digit further, by the bins of all that have the digits before. */
__device__ inline Search pick_digit(const std::uint32_t* bins, const Search& search) {
  constexpr int kOfThread = kBins / kThreads;
  __shared__ Search found;
  // Thread t has the bins from the top down: thread 0 the highest.
  const int highest = kBins - 1 - static_cast<int>(threadIdx.x) * kOfThread;
  std::uint32_t own = 0;
  for (int i = 0; i < kOfThread; ++i) own += bins[highest - i];
  const std::uint32_t up_to = scan_over_block(own);
  std::uint32_t larger = up_to - own;
  if (larger < search.rank && search.rank <= up_to) {
    int bin = highest;
    for (; larger + bins[bin] < search.rank; --bin) larger += bins[bin];
    found = {search.bits | static_cast<std::uint32_t>(bin) << shift_of(search.digit),
             search.rank - larger, search.digit + 1};
  }
  __syncthreads();
  return found;
}

/** What selects as many as the rank of the element that was found: all larger ones, and some of its
 * equals. All that are not finite are selected in any case. */
__device__ inline Cut cut_at(const Search& search) {
  if (search.bits >= kInfinityBits) return {kInfinityBits, kAll};
  return {search.bits, search.rank};
}

}  // namespace tutti::cuda
