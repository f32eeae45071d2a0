// The kernel that marks large elements, written once for all instruction sets: see
// kernels_impl.hpp, which includes it.
#pragma once

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "device/cpu/vector.hpp"

namespace tutti::cpu {
namespace {

/** Elements of one word of marks. */
constexpr std::int64_t kMarkBits = 64;

/** Bit i: whether lane i of `a` is more than that of `b`. */
inline std::uint64_t more_bits(Integers a, Integers b) {
#if defined(__AVX512F__)
  return _mm512_cmpgt_epi32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
#elif defined(__AVX2__)
  const Integers more = a > b;
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(more)));
#elif defined(__SSE2__)
  const Integers more = a > b;
  return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(more)));
#else
  std::uint64_t bits = 0;
  for (unsigned lane = 0; lane < kLanes<float>; ++lane) {
    bits |= static_cast<std::uint64_t>(a[lane] > b[lane]) << lane;
  }
  return bits;
#endif
}

/** Where the values come from. */
enum class MarkSource { gradient, residual, both };

/** The marks of a vector of elements from `i` on. */
template <MarkSource kSource, class Access>
[[gnu::always_inline]] inline std::uint64_t mark_vector(const float* gradient, float* residual,
                                                        std::int64_t i, Integers below,
                                                        Access access) {
  Floats value;
  if constexpr (kSource == MarkSource::gradient) {
    value = access.load(gradient + i);
  } else if constexpr (kSource == MarkSource::residual) {
    value = access.load(residual + i);
  } else {
    value = access.load(residual + i) + access.load(gradient + i);
    access.store(residual + i, value);
  }
  return more_bits(reinterpret_cast<Integers>(value) & 0x7FFFFFFF, below);
}

template <MarkSource kSource>
void mark_all(const float* gradient, float* residual, std::int64_t count, std::uint32_t least,
              std::uint64_t* marks) {
  constexpr std::int64_t kVectors = kMarkBits / kLanes<float>;
  // Magnitudes have no sign bit, so they compare alike as signed integers.
  const Integers below = broadcast(static_cast<std::int32_t>(least) - 1);
  std::int64_t i = 0;
  for (; i + kMarkBits <= count; i += kMarkBits) {
    std::uint64_t word = 0;
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const std::int64_t lane = v * kLanes<float>;
      word |= mark_vector<kSource>(gradient, residual, i + lane, below, Whole()) << lane;
    }
    *marks++ = word;
  }
  if (i == count) return;
  std::uint64_t word = 0;
  for (std::int64_t lane = 0; i + lane < count; lane += kLanes<float>) {
    const std::int64_t left = count - i - lane;
    const Part part{left < kLanes<float> ? left : kLanes<float>};
    word |= mark_vector<kSource>(gradient, residual, i + lane, below, part) << lane;
  }
  *marks = word & ((std::uint64_t{1} << (count - i)) - 1);
}

void mark_kernel(const float* gradient, float* residual, std::int64_t count, std::uint32_t least,
                 std::uint64_t* marks) {
  if (residual == nullptr) {
    mark_all<MarkSource::gradient>(gradient, residual, count, least, marks);
  } else if (gradient == nullptr) {
    mark_all<MarkSource::residual>(gradient, residual, count, least, marks);
  } else {
    mark_all<MarkSource::both>(gradient, residual, count, least, marks);
  }
}

}  // namespace
}  // namespace tutti::cpu
