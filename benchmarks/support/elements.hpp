// Elements of a known value, whatever their type.
#pragma once

#include <cstdint>

#include "tutti/dtype.hpp"

namespace tutti::bench {

/** Calls `function` with a null pointer to the C++ type that stores `dtype`. */
template <class Function>
decltype(auto) with_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32:
      return function(static_cast<float*>(nullptr));
    case DType::f64:
      return function(static_cast<double*>(nullptr));
    case DType::f16:
      return function(static_cast<Half*>(nullptr));
    case DType::bf16:
      return function(static_cast<BFloat16*>(nullptr));
    case DType::i32:
      return function(static_cast<std::int32_t*>(nullptr));
    case DType::i64:
      return function(static_cast<std::int64_t*>(nullptr));
    case DType::i8:
      return function(static_cast<std::int8_t*>(nullptr));
    case DType::i16:
      return function(static_cast<std::int16_t*>(nullptr));
    case DType::u16:
      return function(static_cast<std::uint16_t*>(nullptr));
    case DType::u32:
      return function(static_cast<std::uint32_t*>(nullptr));
    case DType::u64:
      return function(static_cast<std::uint64_t*>(nullptr));
    default:
      return function(static_cast<std::uint8_t*>(nullptr));
  }
}

template <Element T>
T element_of(int value) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_half(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/** Numbers that differ by rank and by element where `stripes` is not 1; sums of up to 16 ranks are
 * exact in every type. */
struct Pattern {
  int base = 1;
  int stripes = 1;

  int contribution(int rank, std::int64_t i) const {
    return base + rank % 5 + static_cast<int>(i % stripes);
  }
  int sum(int ranks, std::int64_t i) const {
    int total = 0;
    for (int rank = 0; rank < ranks; ++rank) total += contribution(rank, i);
    return total;
  }
};

/** Writes what `rank` contributes. */
inline void fill(View data, int rank, const Pattern& pattern) {
  with_type(data.dtype, [&]<class T>(T*) {
    auto* elements = static_cast<T*>(data.data);
    const T first = element_of<T>(pattern.contribution(rank, 0));
    for (std::int64_t i = 0; i < data.count; ++i) elements[i] = first;
    if (pattern.stripes == 1) return;
    for (std::int64_t i = 0; i < data.count; ++i) {
      elements[i] = element_of<T>(pattern.contribution(rank, i));
    }
  });
}

/** Reads everything: whether element i is value(i), which is the same for all i if `uniform`. */
template <class Value>
bool holds(ConstView data, bool uniform, const Value& value) {
  return with_type(data.dtype, [&]<class T>(T*) {
    const auto* elements = static_cast<const T*>(data.data);
    std::int64_t wrong = 0;
    if (uniform) {
      const T expected = element_of<T>(value(0));
      for (std::int64_t i = 0; i < data.count; ++i) wrong += elements[i] == expected ? 0 : 1;
    } else {
      for (std::int64_t i = 0; i < data.count; ++i) {
        wrong += elements[i] == element_of<T>(value(i)) ? 0 : 1;
      }
    }
    return wrong == 0;
  });
}

}  // namespace tutti::bench
