// The kernels that prepare gradients for the wire and take them from it; part of kernels_impl.hpp.
#pragma once

#include <cstdint>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/vector.hpp"

namespace tutti::cpu {
namespace {

template <unsigned kCount>
struct Vectors {
  static constexpr unsigned count = kCount;
};

/** Calls body(i, access, vectors) for strips of that many vectors that cover [0, count). */
template <class Body>
[[gnu::always_inline]] inline void for_each_strip(std::int64_t count, const Body& body) {
  constexpr std::int64_t kWide = kStrip * kLanes<float>;
  std::int64_t i = 0;
  for (; i + kWide <= count; i += kWide) body(i, Whole(), Vectors<kStrip>());
  for (; i + kLanes<float> <= count; i += kLanes<float>) body(i, Whole(), Vectors<1>());
  if (i < count) body(i, Part{count - i}, Vectors<1>());
}

/** All bits where an element is infinite or NaN, else none. */
inline Integers not_finite(Floats value) { return (value - value) != 0.0F; }

inline Floats clip(Floats value, float limit) {
  Floats clipped = value > limit ? broadcast(limit) : value;
  clipped = clipped < -limit ? broadcast(-limit) : clipped;
  return not_finite(value) ? value : clipped;
}

template <class T>
void narrow_kernel(const float* from, void* to, std::int64_t count, const Narrowing& narrowing) {
  const Narrowing local = narrowing;
  T* out = static_cast<T*>(to);
  for_each_strip(count, [&](std::int64_t i, auto access, auto vectors) {
    for (unsigned v = 0; v < vectors.count; ++v) {
      const std::int64_t at = i + v * kLanes<float>;
      Floats value = access.load(from + at);
      if (local.limit > 0.0F) value = clip(value, local.limit);
      access.store(out + at, canonical<float>(value * local.scale));
    }
  });
}

template <class T>
std::int64_t widen_kernel(const void* from, float* to, std::int64_t count, float factor) {
  constexpr std::int64_t kBlock = 1 << 20;  // small enough for 32-bit counters
  const T* in = static_cast<const T*>(from);
  std::int64_t total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = count - begin < kBlock ? count - begin : kBlock;
    Integers found{};
    for_each_strip(size, [&](std::int64_t i, auto access, auto vectors) {
      for (unsigned v = 0; v < vectors.count; ++v) {
        const std::int64_t at = begin + i + v * kLanes<float>;
        const Floats value = access.load(in + at) * factor;
        found -= not_finite(value);  // a true lane is -1
        access.store(to + at, value);
      }
    });
    for (std::int64_t lane = 0; lane < kLanes<float>; ++lane) total += found[lane];
  }
  return total;
}

void accumulate_kernel(float* sum, const float* term, std::int64_t count, float decay,
                       float scale) {
  for_each_strip(count, [&](std::int64_t i, auto access, auto vectors) {
    for (unsigned v = 0; v < vectors.count; ++v) {
      const std::int64_t at = i + v * kLanes<float>;
      const Floats value = access.load(sum + at) * decay + access.load(term + at) * scale;
      access.store(sum + at, canonical<float>(value));
    }
  });
}

double squared_norm_kernel(const float* elements, std::int64_t count) {
  constexpr std::int64_t kSums =
      16;  // whatever the width of a vector, so that no bit depends on it
  constexpr std::int64_t kDoubles = kLanes<double>;
  constexpr std::int64_t kVectors = kSums / kDoubles;
  using Narrow = typename VectorOf<float, kVectorBytes / 2>::Type;
  Vector<double> sums[kVectors] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t v = 0; v < kVectors; ++v) {
      Narrow narrow;
      __builtin_memcpy(&narrow, elements + i + v * kDoubles, sizeof(narrow));
      const Vector<double> value = __builtin_convertvector(narrow, Vector<double>);
      sums[v] += value * value;
    }
  }
  for (std::int64_t place = 0; i < count; ++i, ++place) {
    const double value = elements[i];
    sums[place / kDoubles][place % kDoubles] += value * value;
  }
  double total = 0.0;
  for (std::int64_t place = 0; place < kSums; ++place) {
    total += sums[place / kDoubles][place % kDoubles];
  }
  return total;
}

}  // namespace
}  // namespace tutti::cpu
