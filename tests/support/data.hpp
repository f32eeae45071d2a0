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

inline constexpr std::int64_t kStretch = 512;

/** Of which many are computed at a time: as many as a stretch has at most. */
template <class Value>
concept ComputesStretches = requires(const Value& value, std::span<double> values) {
  value.compute(std::int64_t{}, values);
};

/** Calls body(begin, {value(begin), value(begin + 1), ...}) for stretches that cover [0, count). */
template <class Value, class Body>
void in_stretches(std::int64_t count, const Value& value, const Body& body) {
  std::array<double, kStretch> memory;
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const auto length = static_cast<std::size_t>(std::min(kStretch, count - begin));
    const std::span<double> values = std::span(memory).first(length);
    if constexpr (ComputesStretches<Value>) {
      value.compute(begin, values);
    } else {
      for (std::size_t i = 0; i < length; ++i) {
        values[i] = static_cast<double>(value(begin + static_cast<std::int64_t>(i)));
      }
    }
    body(begin, values);
  }
}

/** view[i] = value(i), or what `value` computes. */
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

/** A number from 0 to below - 1, which is at most 2^24. Of 32 bits, which are hashed several at a
 * time: elements begin anew after 2^32. */
inline int scrambled(int rank, std::int64_t i, int below) {
  constexpr std::uint32_t kByElement = 0x9E3779B1;
  constexpr std::uint32_t kByRank = 0xC2B2AE35;
  std::uint32_t h = static_cast<std::uint32_t>(i) * kByElement;
  h += static_cast<std::uint32_t>(rank) * kByRank + 1;
  h = (h ^ (h >> 15U)) * std::uint32_t{0x85EBCA6B};
  h ^= h >> 13U;
  return static_cast<int>((std::uint64_t{h >> 8U} * static_cast<std::uint64_t>(below)) >> 24U);
}

/**
 * What `rank` contributes, from `first` on: small whole numbers, so that every result is exact in
 * every dtype and order; different in each rank, and with no period.
 */
struct Contribution {
  DType dtype;
  ReduceKind kind;
  int rank;
  std::int64_t first = 0;

  void compute(std::int64_t begin, std::span<double> values) const;
};

/** What the reduction of contributions of `ranks` ranks is, from `first` on. */
struct Reduced {
  DType dtype;
  Reduce reduce;
  int ranks;
  std::int64_t first = 0;
  int first_rank = 0;

  void compute(std::int64_t begin, std::span<double> values) const;
};

/** Element `i` of what `rank` contributes. */
double contribution(DType dtype, ReduceKind kind, int rank, std::int64_t i);

/** What the reduction of contribution(.., first, i) to contribution(.., first + ranks - 1, i) is.
 */
double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i, int first = 0);

/** Every reduction that `dtype` has, with a factor that keeps results exact. */
std::vector<Reduce> reductions(DType dtype);

}  // namespace tutti::test
