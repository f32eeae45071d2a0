// The kernels, written once for all instruction sets: kernels_<isa>.cpp compile this text, each
// with its own flags. Read vector.hpp first.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cpu/adaptive_impl.hpp"
#include "device/cpu/kernel_table.hpp"
#include "device/cpu/mark_impl.hpp"
#include "device/cpu/reduce_impl.hpp"
#include "device/cpu/vector.hpp"
#include "device/cpu/wire_impl.hpp"

namespace tutti::cpu {
namespace {

/** Lines of 64 bytes past the caches; `to` starts one. Returns the bytes copied. */
std::int64_t stream_lines(void* to, const void* from, std::int64_t bytes) {
  constexpr std::int64_t kStep = std::int64_t{kStrip} * kVectorBytes;
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  const std::int64_t whole = bytes / kStep * kStep;
  for (std::int64_t i = 0; i < whole; i += kStep) {
    Words value[kStrip];
    __builtin_memcpy(value, source + i, sizeof(value));
    for (std::size_t v = 0; v < kStrip; ++v) stream(target + i + v * kVectorBytes, value[v]);
  }
  fence_streams();
  return whole;
}

/**
 * Updates `kVectors` vectors from element `i` on. Takes one array after the other: where the
 * addresses of two collide in the way prediction of AMD's first-level cache, alternating between
 * them was measured to take four times as long.
 */
template <unsigned kVectors, class Access>
[[gnu::always_inline]] inline void sgd_strip(float* parameter, const float* gradient,
                                             float* velocity, std::int64_t i, const SgdStep& step,
                                             Access access) {
  const auto at = [i](unsigned v) { return i + v * kLanes<float>; };
  Floats p[kVectors];
  Floats d[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) p[v] = access.load(parameter + at(v));
  for (unsigned v = 0; v < kVectors; ++v) {
    d[v] = access.load(gradient + at(v)) * step.gradient_scale;
    if (step.weight_decay != 0.0F) d[v] = d[v] + p[v] * step.weight_decay;
  }
  if (velocity != nullptr) {
    Floats m[kVectors];
    for (unsigned v = 0; v < kVectors; ++v) {
      m[v] = d[v];
      if (!step.first) {
        m[v] = access.load(velocity + at(v)) * step.momentum + d[v] * (1.0F - step.dampening);
      }
    }
    for (unsigned v = 0; v < kVectors; ++v) {
      access.store(velocity + at(v), m[v]);
      d[v] = step.nesterov ? d[v] + m[v] * step.momentum : m[v];
    }
  }
  for (unsigned v = 0; v < kVectors; ++v) access.store(parameter + at(v), p[v] - d[v] * step.lr);
}

void sgd_kernel(float* parameter, const float* gradient, float* velocity, std::int64_t count,
                const SgdStep& step) {
  const SgdStep local = step;
  std::int64_t i = 0;
  for (; i + kStrip * kLanes<float> <= count; i += kStrip * kLanes<float>) {
    sgd_strip<kStrip>(parameter, gradient, velocity, i, local, Whole());
  }
  for (; i + kLanes<float> <= count; i += kLanes<float>) {
    sgd_strip<1>(parameter, gradient, velocity, i, local, Whole());
  }
  if (i < count) sgd_strip<1>(parameter, gradient, velocity, i, local, Part{count - i});
}

/** In the order of DType. */
constexpr KernelTable kKernels{
    {kFloatKernels<float>, kFloatKernels<double>, kFloatKernels<Half>, kFloatKernels<BFloat16>,
     kIntegerKernels<std::int32_t>, kIntegerKernels<std::int64_t>, kIntegerKernels<std::uint8_t>,
     kIntegerKernels<std::int8_t>, kIntegerKernels<std::int16_t>, kIntegerKernels<std::uint16_t>,
     kIntegerKernels<std::uint32_t>, kIntegerKernels<std::uint64_t>, kBooleanKernels},
    sgd_kernel,
    adam_kernel,
    adagrad_kernel,
    mark_kernel,
    {narrow_kernel<Half>, narrow_kernel<BFloat16>},
    {widen_kernel<Half>, widen_kernel<BFloat16>},
    accumulate_kernel,
    squared_norm_kernel,
    stream_lines};

}  // namespace
}  // namespace tutti::cpu
