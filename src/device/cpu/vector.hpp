// Vectors as wide as the instruction set a file is compiled for, and the way elements get in and
// out.
//
// This header and kernels_impl.hpp are compiled once for each instruction set. Everything is in an
// unnamed namespace, and no inline function from elsewhere is called: the linker keeps one copy of
// such a function, which might be the AVX-512 one. Templates over these vectors may be: they are
// others for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "tutti/dtype.hpp"

namespace tutti::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

/** What elements of type T are calculated in. */
template <class T>
struct LaneOf {
  using Type = T;
};
template <>
struct LaneOf<Half> {
  using Type = float;
};
template <>
struct LaneOf<BFloat16> {
  using Type = float;
};
template <class T>
using Lane = typename LaneOf<T>::Type;

template <class L, int kBytes>
struct VectorOf {
  using Type [[gnu::vector_size(kBytes)]] = L;
};
template <class L>
using Vector = typename VectorOf<L, kVectorBytes>::Type;

/** How many elements of type T are calculated in one vector. */
template <class T>
constexpr std::int64_t kLanes = kVectorBytes / static_cast<std::int64_t>(sizeof(Lane<T>));

/** Independent vectors in flight, to hide the latency of an operation. */
constexpr unsigned kStrip = 4;

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
using Integers = Vector<std::int32_t>;
using Halfwords = typename VectorOf<std::uint16_t, kVectorBytes / 2>::Type;

template <class L>
Vector<L> broadcast(L value) {
  return value - Vector<L>{};  // minus, since -0.0 + 0.0 is 0.0
}

// square_root() rounds to nearest. widen() and narrow() extend words by zeros, and cut off their
// upper half, which is zero. widen_half() and narrow_half() convert as dtype.hpp does, except for a
// NaN's payload.

#if defined(__AVX512F__)

// With a mask of all lanes: GCC warns about its own functions without one.
constexpr __mmask16 kAllLanes = 0xFFFF;

inline Floats square_root(Floats value) {
  return reinterpret_cast<Floats>(_mm512_maskz_sqrt_ps(kAllLanes, reinterpret_cast<__m512>(value)));
}

inline Words widen(Halfwords halves) {
  return reinterpret_cast<Words>(
      _mm512_maskz_cvtepu16_epi32(kAllLanes, reinterpret_cast<__m256i>(halves)));
}
inline Halfwords narrow(Words words) {
  return reinterpret_cast<Halfwords>(
      _mm512_maskz_cvtepi32_epi16(kAllLanes, reinterpret_cast<__m512i>(words)));
}
inline Floats widen_half(Halfwords halves) {
  return reinterpret_cast<Floats>(
      _mm512_maskz_cvtph_ps(kAllLanes, reinterpret_cast<__m256i>(halves)));
}
inline Halfwords narrow_half(Floats value) {
  return reinterpret_cast<Halfwords>(
      _mm512_maskz_cvtps_ph(kAllLanes, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__AVX2__)

inline Floats square_root(Floats value) {
  return reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(value)));
}
inline Words widen(Halfwords halves) {
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
}
inline Halfwords narrow(Words words) {
  const __m256i both = reinterpret_cast<__m256i>(words);
  return reinterpret_cast<Halfwords>(
      _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
}
inline Floats widen_half(Halfwords halves) {
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)));
}
inline Halfwords narrow_half(Floats value) {
  return reinterpret_cast<Halfwords>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}

#else

inline Floats square_root(Floats value) {
#if defined(__SSE2__)
  return reinterpret_cast<Floats>(_mm_sqrt_ps(reinterpret_cast<__m128>(value)));
#else
  for (int i = 0; i < kLanes<float>; ++i) value[i] = __builtin_sqrtf(value[i]);
  return value;
#endif
}

inline Words widen(Halfwords halves) { return __builtin_convertvector(halves, Words); }
inline Halfwords narrow(Words words) { return __builtin_convertvector(words, Halfwords); }

inline Floats widen_half(Halfwords halves) {
  const Words half = widen(halves);
  const Words sign = (half & 0x8000U) << 16U;
  const Words shifted = (half & 0x7FFFU) << 13U;
  const Words normal = shifted + (112U << 23U);
  // 2^-14 + mantissa * 2^-24, less 2^-14: exact, and no subnormal that a CPU may be told to flush.
  const Floats subnormal = reinterpret_cast<Floats>(normal + (1U << 23U)) - 0x1p-14F;
  const Integers order = reinterpret_cast<Integers>(shifted);  // signed compares are cheaper
  Words bits = order < 0x00800000 ? reinterpret_cast<Words>(subnormal) : normal;
  bits = order >= 0x0F800000 ? shifted + (224U << 23U) : bits;
  return reinterpret_cast<Floats>(sign | bits);
}

inline Halfwords narrow_half(Floats value) {
  const Words bits = reinterpret_cast<Words>(value);
  const Words sign = (bits >> 16U) & 0x8000U;
  const Words magnitude = bits & 0x7FFFFFFFU;
  const Words odd = (magnitude >> 13U) & 1U;
  const Words normal = (magnitude - (0x38000000U - 0xFFFU) + odd) >> 13U;
  const Words subnormal =
      reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + 0.5F) - 0x3F000000U;
  const Integers order = reinterpret_cast<Integers>(magnitude);
  Words half = order < 0x38800000 ? subnormal : normal;
  half = order >= 0x47800000 ? broadcast(0x7C00U) : half;
  half = order > 0x7F800000 ? broadcast(0x7E00U) : half;
  return narrow(sign | half);
}

#endif

inline Floats widen_bfloat16(Halfwords halves) {
  return reinterpret_cast<Floats>(widen(halves) << 16U);
}

/** A NaN is the one of canonical(), which the rounding leaves alone. */
inline Halfwords narrow_bfloat16(Floats value) {
  const Words bits = reinterpret_cast<Words>(value);
  return narrow((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/**
 * Makes every NaN the quiet one without sign and payload. Which of two NaNs an addition returns
 * is up to the compiler.
 */
template <class L>
Vector<L> canonical(Vector<L> value) {
  if constexpr (std::is_floating_point_v<L>) {
    return value == value ? value : broadcast(static_cast<L>(__builtin_nan("")));
  } else {
    return value;
  }
}

/** Reads and writes whole vectors at any address. */
struct Whole {
  template <class T>
  Vector<Lane<T>> load(const T* from) const {
    if constexpr (sizeof(T) == sizeof(Lane<T>)) {
      Vector<T> value;
      __builtin_memcpy(&value, from, sizeof(value));
      return value;
    } else {
      Halfwords halves;
      __builtin_memcpy(&halves, from, sizeof(halves));
      return std::is_same_v<T, Half> ? widen_half(halves) : widen_bfloat16(halves);
    }
  }

  template <class T>
  void store(T* to, Vector<Lane<T>> value) const {
    if constexpr (sizeof(T) == sizeof(Lane<T>)) {
      __builtin_memcpy(static_cast<void*>(to), &value, sizeof(value));
    } else {
      const Halfwords halves =
          std::is_same_v<T, Half> ? narrow_half(value) : narrow_bfloat16(value);
      __builtin_memcpy(static_cast<void*>(to), &halves, sizeof(halves));
    }
  }
};

/** Writes a vector past the caches; `to` is a multiple of its size. */
template <class V>
void stream(void* to, V value) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
    return;
  }
#endif
  __builtin_memcpy(to, &value, sizeof(value));
}

/** Lets what was streamed be seen before anything that is stored from now on. */
inline void fence_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/** Reads as Whole does, writes past the caches at multiples of the vector's size. */
struct Streamed : Whole {
  template <class T>
  void store(T* to, Vector<Lane<T>> value) const {
    if constexpr (sizeof(T) == sizeof(Lane<T>)) {
      stream(to, value);
    } else {
      stream(to, std::is_same_v<T, Half> ? narrow_half(value) : narrow_bfloat16(value));
    }
  }
};

/** Reads and writes the first `count` elements of a vector; what else it reads is zero. */
struct Part {
  std::int64_t count;

  template <class T>
  Vector<Lane<T>> load(const T* from) const {
    alignas(T) unsigned char elements[kLanes<T> * sizeof(T)] = {};
    __builtin_memcpy(elements, from, static_cast<std::size_t>(count) * sizeof(T));
    return Whole().load(reinterpret_cast<const T*>(elements));
  }

  template <class T>
  void store(T* to, Vector<Lane<T>> value) const {
    alignas(T) unsigned char elements[kLanes<T> * sizeof(T)];
    Whole().store(reinterpret_cast<T*>(elements), value);
    __builtin_memcpy(static_cast<void*>(to), elements, static_cast<std::size_t>(count) * sizeof(T));
  }
};

}  // namespace
}  // namespace tutti::cpu
