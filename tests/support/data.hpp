// Test data whose exact result is known in every dtype, reduction and order of ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

inline constexpr std::array<DType, kDTypeCount> kDTypes{
    DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64,    DType::u8,
    DType::i8,  DType::i16, DType::u16, DType::u32,  DType::u64, DType::boolean};
/** One of each arithmetic and size, for sweeps that take long. */
inline constexpr std::array<DType, 7> kFewDTypes{DType::f32, DType::f64, DType::f16,    DType::bf16,
                                                 DType::i32, DType::u64, DType::boolean};

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
      return function(std::uint8_t{});
    case DType::i8:
      return function(std::int8_t{});
    case DType::i16:
      return function(std::int16_t{});
    case DType::u16:
      return function(std::uint16_t{});
    case DType::u32:
      return function(std::uint32_t{});
    case DType::u64:
      return function(std::uint64_t{});
    case DType::boolean:
      break;
  }
  return function(bool{});
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

/** Elements [begin, begin + values.size()) of `view` become `values`, each rounded to the dtype. */
void write(const View& view, std::int64_t begin, std::span<const double> values);
/** Whether they are `values`, bit for bit once these are rounded to the dtype. */
::testing::AssertionResult are(const ConstView& view, std::int64_t begin,
                               std::span<const double> values);

/** Calls body(begin, {value(begin), value(begin + 1), ...}) for stretches that cover [0, count). */
template <class Value, class Body>
void in_stretches(std::int64_t count, const Value& value, const Body& body) {
  std::array<double, 512> values;
  for (std::int64_t begin = 0; begin < count; begin += std::ssize(values)) {
    const std::int64_t length = std::min<std::int64_t>(std::ssize(values), count - begin);
    for (std::int64_t i = 0; i < length; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<double>(value(begin + i));
    }
    body(begin, std::span<const double>(values).first(static_cast<std::size_t>(length)));
  }
}

/** view[i] = value(i). */
template <class Value>
void fill(const View& view, const Value& value) {
  in_stretches(view.count, value,
               [&](std::int64_t begin, auto values) { write(view, begin, values); });
}

/** Whether view[i] == value(i), bit for bit once value(i) is rounded to the dtype. */
template <class Value>
::testing::AssertionResult holds(const ConstView& view, const Value& value) {
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  in_stretches(view.count, value, [&](std::int64_t begin, auto values) {
    if (result) result = are(view, begin, values);
  });
  return result;
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
  const bool negative = is_float(dtype) || is_signed_integer(dtype);
  switch (kind) {
    case ReduceKind::band:
    case ReduceKind::bor:
    case ReduceKind::bxor:
      return scrambled(rank, i, 256) - (negative ? 128 : 0);
    case ReduceKind::land:  // a quarter false, or true, so that neither result is rare
      return scrambled(rank, i, 4);
    case ReduceKind::lor:
    case ReduceKind::lxor:
      return scrambled(rank, i, 4) == 0 ? 3 : 0;
    default:
      break;
  }
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
std::vector<Reduce> reductions(DType dtype);

}  // namespace tutti::test
