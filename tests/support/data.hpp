// Test data whose exact result is known in every dtype, reduction and order of ranks.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

inline constexpr std::array<DType, kDTypeCount> kDTypes{
    DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};

constexpr bool is_integer(DType dtype) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
}

/** Calls `function` with a value of the C++ type that stores `dtype`. */
template <class Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32:
      return function(float{});
    case DType::f64:
      return function(double{});
    case DType::f16:
      return function(Half{});
    case DType::bf16:
      return function(BFloat16{});
    case DType::i32:
      return function(std::int32_t{});
    case DType::i64:
      return function(std::int64_t{});
    case DType::u8:
      break;
  }
  return function(std::uint8_t{});
}

/** The element of type T nearest to `value`. */
template <Element T>
T element(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_half(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <Element T>
double number(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return static_cast<double>(to_float(value));
  } else {
    return static_cast<double>(value);
  }
}

/** view[i] = value(i). */
template <class Value>
void fill(const View& view, const Value& value) {
  dispatch(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* elements = static_cast<T*>(view.data);
    for (std::int64_t i = 0; i < view.count; ++i) elements[i] = element<T>(value(i));
  });
}

/** Whether view[i] == value(i), bit for bit once value(i) is rounded to the dtype. */
template <class Value>
::testing::AssertionResult holds(const ConstView& view, const Value& value) {
  return dispatch(view.dtype, [&](auto zero) -> ::testing::AssertionResult {
    using T = decltype(zero);
    const auto* elements = static_cast<const T*>(view.data);
    for (std::int64_t i = 0; i < view.count; ++i) {
      const T expected = element<T>(value(i));
      if (elements[i] == expected) continue;
      return ::testing::AssertionFailure()
             << "element " << i << " of " << view.count << " is " << number(elements[i])
             << " instead of " << number(expected);
    }
    return ::testing::AssertionSuccess();
  });
}

/** A number from 0 to below - 1, which is at most 2^24. */
inline int scrambled(int rank, std::int64_t i, int below) {
  constexpr std::uint64_t kByElement = 0x9E3779B97F4A7C15;
  constexpr std::uint64_t kByRank = 0xC2B2AE3D27D4EB4F;
  std::uint64_t h = static_cast<std::uint64_t>(i) * kByElement;
  h += static_cast<std::uint64_t>(rank) * kByRank + 1;
  h = (h ^ (h >> 32U)) * std::uint64_t{0xD6E8FEB86659FD93};
  return static_cast<int>(((h >> 40U) * static_cast<std::uint64_t>(below)) >> 24U);
}

/**
 * Element `i` of what `rank` contributes: a small whole number, so that every result is exact in
 * every dtype and order; different in each rank, and with no period in `i`.
 */
inline double contribution(DType dtype, ReduceKind kind, int rank, std::int64_t i) {
  const bool negative = dtype != DType::u8;
  if (kind == ReduceKind::product) {  // at most 3^4; no zero, which would hide the others
    const int magnitude = scrambled(rank, i, 3) + 1;
    return negative && scrambled(rank + 64, i, 2) != 0 ? -magnitude : magnitude;
  }
  return scrambled(rank, i, 17) - (negative ? 8 : 0);
}

/** What the reduction of contribution(.., first, i) to contribution(.., first + ranks - 1, i) is.
 */
double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i, int first = 0);

/** Every reduction that `dtype` has, with a factor that keeps results exact. */
std::array<Reduce, kReduceKindCount> reductions(DType dtype);

}  // namespace tutti::test
