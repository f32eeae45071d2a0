// A decaying sum of gradients that are scaled down to a norm: momentum correction and clipping.
#include "device/cuda/block.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"

namespace tutti::cuda {
namespace {

constexpr unsigned kMostBlocks = 1024;

/** Adds up a number of each thread of a block, in a fixed order; the sum is thread 0's. */
__device__ double sum_over_block(double own) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

/** What a gradient of so many squares is to be multiplied with. */
__device__ float scale_of(double squares, float norm_limit) {
  const double norm = sqrt(squares);
  const double limit = norm_limit;
  return norm > limit && norm <= 1.7976931348623157e308 ? static_cast<float>(limit / norm) : 1.0F;
}

/** Adds up the squares, and says what the gradient is to be multiplied with. Groups whatever the
 * alignment: it must not change the order. */
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const float* elements, std::int64_t count, double* parts, std::uint32_t* ended,
                 float norm_limit, float* scale) {
  double own = 0.0;
  const bool aligned = takes_groups(elements);
  for_each_group_of_grid<kGroup>(count, true, [&]<int kN>(std::int64_t at) {
    const Group<float, kN> group = load_any<kN>(elements + at, aligned);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      own += static_cast<double>(group.elements[j]) * static_cast<double>(group.elements[j]);
    }
  });
  const double part = sum_over_block(own);
  if (threadIdx.x == 0) parts[blockIdx.x] = part;
  if (!ends_last(ended, gridDim.x)) return;
  own = 0.0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) own += read_anew(parts + i);
  const double squares = sum_over_block(own);
  if (threadIdx.x == 0) *scale = scale_of(squares, norm_limit);
}

__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* sum, const float* term, std::int64_t count, float decay,
                      const float* scale) {
  const float by = scale != nullptr ? *scale : 1.0F;
  const bool grouped = takes_groups(sum) && takes_groups(term);
  for_each_group_of_grid<kGroup>(count, grouped, [&]<int kN>(std::int64_t at) {
    const Group<float, kN> added = load<kN>(term + at);
    Group<float, kN> result{};
    if (decay != 0.0F) result = load<kN>(sum + at);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float scaled = by * added.elements[j];
      result.elements[j] = decay == 0.0F ? scaled : decay * result.elements[j] + scaled;
    }
    store(sum + at, result);
  });
}

}  // namespace

void accumulate(float* sum, const float* term, std::int64_t count, float decay, float norm_limit,
                Scratch& scratch) {
  if (count == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(blocks_for(count, kChunk), kMostBlocks));
  const Stream& stream = scratch.stream();
  float* scale = nullptr;
  if (norm_limit > 0.0F) {
    // The blocks' parts, and behind them the scale.
    auto* parts = static_cast<double*>(
        scratch.take((blocks + 1) * static_cast<std::int64_t>(sizeof(double))));
    scale = reinterpret_cast<float*>(parts + blocks);
    launch("scale_kernel", scale_kernel, blocks, kThreads, stream, term, count, parts,
           scratch.counter(), norm_limit, scale);
  }
  launch("accumulate_kernel", accumulate_kernel, blocks, kThreads, stream, sum, term, count, decay,
         scale);
}

void load_accumulate() { load_all(scale_kernel, accumulate_kernel); }

}  // namespace tutti::cuda
