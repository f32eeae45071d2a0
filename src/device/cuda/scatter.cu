// What is done at the entries of a sparse vector, and to the sums of several.
#include "device/cuda/kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/elementwise.hpp"

namespace tutti::cuda {
namespace {

__device__ std::int64_t count_of(const Entries& entries) {
  return *entries.count < entries.most ? *entries.count : entries.most;
}

/** The entries are read in groups; where they point to, element by element. */
__global__ void __launch_bounds__(kThreads) scatter_add_kernel(const Entries entries, float* sum) {
  const bool grouped = takes_groups(entries.indices) && takes_groups(entries.values);
  for_each_group_of_grid<kGroup>(count_of(entries), grouped, [&]<int kN>(std::int64_t at) {
    const Group<std::uint32_t, kN> indices = load<kN>(entries.indices + at);
    Group<float, kN> values = load<kN>(entries.values + at);
    // No index is there twice: all are read before the first is written.
#pragma unroll
    for (int j = 0; j < kN; ++j) values.elements[j] = sum[indices.elements[j]] + values.elements[j];
#pragma unroll
    for (int j = 0; j < kN; ++j) sum[indices.elements[j]] = values.elements[j];
  });
}

__global__ void __launch_bounds__(kThreads) clear_kernel(const Entries entries, float* data) {
  const bool grouped = takes_groups(entries.indices);
  for_each_group_of_grid<kGroup>(count_of(entries), grouped, [&]<int kN>(std::int64_t at) {
    for (const std::uint32_t index : load<kN>(entries.indices + at).elements) data[index] = 0.0F;
  });
}

__global__ void __launch_bounds__(kThreads)
    count_non_finite_kernel(const Entries entries, unsigned long long* count) {
  unsigned found = 0;
  const bool grouped = takes_groups(entries.values);
  for_each_group_of_grid<kGroup>(count_of(entries), grouped, [&]<int kN>(std::int64_t at) {
    for (const float value : load<kN>(entries.values + at).elements) {
      if (!is_finite(value)) ++found;
    }
  });
  if (found != 0) atomicAdd(count, found);  // rare: no reduction
}

__global__ void __launch_bounds__(kThreads)
    divide_kernel(float* data, std::int64_t count, float divisor) {
  for_each_group_of_grid<kGroup>(count, takes_groups(data), [&]<int kN>(std::int64_t at) {
    Group<float, kN> group = load<kN>(data + at);
    for (float& element : group.elements) element = element / divisor;
    store(data + at, group);
  });
}

/** Blocks for `count` elements: a group for each thread, several where there are many. */
unsigned grid_for(std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 4096;
  return static_cast<unsigned>(std::min(blocks_for(count, kThreads * kGroup), kMostBlocks));
}

}  // namespace

void scatter_add(const Entries& entries, float* sum, const Stream& stream) {
  if (entries.most == 0) return;
  launch("scatter_add_kernel", scatter_add_kernel, grid_for(entries.most), kThreads, stream,
         entries, sum);
}

void clear(const Entries& entries, float* data, const Stream& stream) {
  if (entries.most == 0) return;
  launch("clear_kernel", clear_kernel, grid_for(entries.most), kThreads, stream, entries, data);
}

void count_non_finite(const Entries& entries, std::int64_t* count, const Stream& stream) {
  if (entries.most == 0) return;
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  launch("count_non_finite_kernel", count_non_finite_kernel, grid_for(entries.most), kThreads,
         stream, entries, reinterpret_cast<unsigned long long*>(count));
}

void divide(float* data, std::int64_t count, float divisor, const Stream& stream) {
  if (count == 0) return;
  launch("divide_kernel", divide_kernel, grid_for(count), kThreads, stream, data, count, divisor);
}

void load_scatter() {
  load_all(scatter_add_kernel, clear_kernel, count_non_finite_kernel, divide_kernel);
}

}  // namespace tutti::cuda
