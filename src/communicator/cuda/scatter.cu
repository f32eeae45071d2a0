// Adds a sparse vector to a dense one.
#include "communicator/cuda/kernels.hpp"
#include "communicator/cuda/launch.cuh"

namespace tutti::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    scatter_add_kernel(const std::uint32_t* indices, const float* values,
                       const std::uint32_t* count, std::int64_t most, float* sum) {
  const std::int64_t entries = *count < most ? *count : most;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < entries;
       i += stride) {
    sum[indices[i]] += values[i];
  }
}

}  // namespace

void scatter_add(const std::uint32_t* indices, const float* values, const std::uint32_t* count,
                 std::int64_t most, float* sum, const Stream& stream) {
  if (most == 0) return;
  constexpr std::int64_t kMostBlocks = 4096;
  const auto blocks = static_cast<unsigned>(std::min(blocks_for(most, kThreads), kMostBlocks));
  scatter_add_kernel<<<blocks, kThreads, 0, native(stream)>>>(indices, values, count, most, sum);
  check_launch("scatter_add_kernel");
}

}  // namespace tutti::cuda
