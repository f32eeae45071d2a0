// What is done at the entries of a sparse vector, and to the sums of several.
#include "communicator/cuda/kernels.hpp"
#include "communicator/cuda/launch.cuh"
#include "communicator/elementwise.hpp"

namespace tutti::cuda {
namespace {

/** Calls action(i) for i < count, spread over the grid. */
template <class Action>
__device__ void for_each(std::int64_t count, const Action& action) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    action(i);
  }
}

__device__ std::int64_t count_of(const Entries& entries) {
  return *entries.count < entries.most ? *entries.count : entries.most;
}

__global__ void __launch_bounds__(kThreads) scatter_add_kernel(const Entries entries, float* sum) {
  for_each(count_of(entries),
           [&](std::int64_t i) { sum[entries.indices[i]] += entries.values[i]; });
}

__global__ void __launch_bounds__(kThreads) clear_kernel(const Entries entries, float* data) {
  for_each(count_of(entries), [&](std::int64_t i) { data[entries.indices[i]] = 0.0F; });
}

__global__ void __launch_bounds__(kThreads)
    count_non_finite_kernel(const Entries entries, unsigned long long* count) {
  unsigned found = 0;
  for_each(count_of(entries), [&](std::int64_t i) {
    if (!is_finite(entries.values[i])) ++found;
  });
  if (found != 0) atomicAdd(count, found);  // rare: no reduction
}

__global__ void __launch_bounds__(kThreads)
    divide_kernel(float* data, std::int64_t count, float divisor) {
  const std::int64_t groups = takes_groups(data) ? count / kGroup : 0;
  for_each(groups, [&](std::int64_t i) {
    float4 group = reinterpret_cast<const float4*>(data)[i];
    group.x = group.x / divisor;
    group.y = group.y / divisor;
    group.z = group.z / divisor;
    group.w = group.w / divisor;
    reinterpret_cast<float4*>(data)[i] = group;
  });
  float* rest = data + groups * kGroup;
  for_each(count - groups * kGroup, [&](std::int64_t i) { rest[i] = rest[i] / divisor; });
}

/** Blocks for `count` elements of which each thread takes several where there are many. */
unsigned grid_for(std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 4096;
  return static_cast<unsigned>(std::min(blocks_for(count, kThreads), kMostBlocks));
}

}  // namespace

void scatter_add(const Entries& entries, float* sum, const Stream& stream) {
  if (entries.most == 0) return;
  scatter_add_kernel<<<grid_for(entries.most), kThreads, 0, native(stream)>>>(entries, sum);
  check_launch("scatter_add_kernel");
}

void clear(const Entries& entries, float* data, const Stream& stream) {
  if (entries.most == 0) return;
  clear_kernel<<<grid_for(entries.most), kThreads, 0, native(stream)>>>(entries, data);
  check_launch("clear_kernel");
}

void count_non_finite(const Entries& entries, std::int64_t* count, const Stream& stream) {
  if (entries.most == 0) return;
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  count_non_finite_kernel<<<grid_for(entries.most), kThreads, 0, native(stream)>>>(
      entries, reinterpret_cast<unsigned long long*>(count));
  check_launch("count_non_finite_kernel");
}

void divide(float* data, std::int64_t count, float divisor, const Stream& stream) {
  if (count == 0) return;
  divide_kernel<<<grid_for(blocks_for(count, kGroup)), kThreads, 0, native(stream)>>>(data, count,
                                                                                      divisor);
  check_launch("divide_kernel");
}

}  // namespace tutti::cuda
