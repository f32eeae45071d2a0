// A pass that reads, and CUB's radix sort.
#include "cuda/peers.hpp"

#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/check.hpp"

namespace tutti::bench {

using cuda::check;

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4096;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const float4* data, std::int64_t groups, float* sink) {
  float sum = 0.0F;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < groups;
       i += stride) {
    const float4 group = data[i];
    sum += group.x + group.y + group.z + group.w;
  }
  if (sum == 1.2345e30F) *sink = sum;  // never, but the compiler cannot know
}

__global__ void __launch_bounds__(kThreads)
    pair_kernel(const float* data, std::int64_t count, std::uint32_t* keys,
                std::uint32_t* indices) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    keys[i] = __float_as_uint(data[i]) & 0x7FFFFFFFU;
    indices[i] = static_cast<std::uint32_t>(i);
  }
}

}  // namespace

void read_pass(const float* data, std::int64_t count, float* sink, cudaStream_t stream) {
  read_kernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<const float4*>(data), count / 4,
                                                sink);
  check(cudaGetLastError(), "read_kernel");
}

PairSort::PairSort(std::int64_t count) : count_(count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(std::uint32_t);
  check(cudaMalloc(reinterpret_cast<void**>(&keys_), 2 * bytes), "cudaMalloc");
  check(cudaMalloc(reinterpret_cast<void**>(&indices_), 2 * bytes), "cudaMalloc");
  check(cub::DeviceRadixSort::SortPairsDescending(nullptr, scratch_bytes_, keys_, keys_ + count,
                                                  indices_, indices_ + count, count),
        "SortPairsDescending");
  check(cudaMalloc(&scratch_, scratch_bytes_), "cudaMalloc");
}

PairSort::~PairSort() {
  cudaFree(keys_);
  cudaFree(indices_);
  cudaFree(scratch_);
}

void PairSort::run(const float* data, cudaStream_t stream) {
  pair_kernel<<<kBlocks, kThreads, 0, stream>>>(data, count_, keys_, indices_);
  check(cudaGetLastError(), "pair_kernel");
  check(
      cub::DeviceRadixSort::SortPairsDescending(scratch_, scratch_bytes_, keys_, keys_ + count_,
                                                indices_, indices_ + count_, count_, 0, 31, stream),
      "SortPairsDescending");
}

}  // namespace tutti::bench
