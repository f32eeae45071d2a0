// What nvcc gives to a kernel, for a compiler of C++: included in front of every .cu file, it makes
// kernels functions that the threads of a Block call. It has what tutti's kernels use, no more.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gpu/on_cpu/gpus.hpp"
#include "gpu/on_cpu/grid.hpp"

// NVIDIA's header has made attributes of these.
#undef __device__
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#undef __shared__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

using std::max;
using std::min;
using tutti::on_cpu::blockIdx;
using tutti::on_cpu::gridDim;
using tutti::on_cpu::threadIdx;

inline void __syncthreads() { tutti::on_cpu::wait_for_block(); }
inline void __threadfence() {}

inline unsigned __ballot_sync(unsigned mask, bool own) {
  return tutti::on_cpu::exchange(mask, own ? 1 : 0).ballot;
}

inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }

inline std::uint32_t __shfl_xor_sync(unsigned mask, std::uint32_t own, unsigned distance) {
  return tutti::on_cpu::exchange(mask, own).brought[threadIdx.x % 32 ^ distance];
}

inline std::uint32_t __shfl_up_sync(unsigned mask, std::uint32_t own, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  const tutti::on_cpu::Exchange& exchange = tutti::on_cpu::exchange(mask, own);
  return lane < distance ? own : exchange.brought[lane - distance];
}

inline std::uint32_t __shfl_sync(unsigned mask, std::uint32_t own, unsigned lane) {
  return tutti::on_cpu::exchange(mask, own).brought[lane];
}

inline int __popc(unsigned value) { return std::popcount(value); }

/** The number of the lowest bit that is set, from 1 on. */
inline int __ffs(int value) {
  return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1;
}

/** The sum of the products of bytes, and `sum`. */
inline std::uint32_t __dp4a(std::uint32_t a, std::uint32_t b, std::uint32_t sum) {
  for (unsigned shift = 0; shift < 32; shift += 8) {
    sum += (a >> shift & 0xFFU) * (b >> shift & 0xFFU);
  }
  return sum;
}

inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> more) {
  return std::exchange(*at, *at + more);
}

inline std::uint32_t atomicInc(std::uint32_t* at, std::uint32_t most) {
  return std::exchange(*at, *at >= most ? 0 : *at + 1);
}

template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, value);
}

/** The runtime's own, which knows a kernel's parameters by its type. Returns when all has run. */
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                             void** arguments, std::size_t, cudaStream_t stream) {
  if (!tutti::on_cpu::may_launch(reinterpret_cast<const void*>(kernel))) {
    return cudaErrorInvalidDeviceFunction;
  }
  const auto copy = [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    return std::tuple<Parameters...>(*static_cast<const Parameters*>(arguments[kAt])...);
  };
  // A graph keeps the arguments for later.
  const auto grid = [=, kept = copy(std::index_sequence_for<Parameters...>())] {
    return tutti::on_cpu::run_grid(blocks.x, threads.x, [&] { std::apply(kernel, kept); });
  };
  return tutti::on_cpu::launch(stream, grid);
}
