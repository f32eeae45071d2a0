// Reductions: how the contributions of the ranks become one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/dtype.hpp"

namespace tutti {

/** How the contributions of the ranks are combined, element by element: band, bor and bxor bit by
 * bit, land, lor and lxor as truth values. */
enum class ReduceKind : std::uint8_t {
  sum,
  average,
  min,
  max,
  product,
  premul_sum,
  band,
  bor,
  bxor,
  land,
  lor,
  lxor,
};

inline constexpr int kReduceKindCount = 12;

/** "sum", "premul_sum", "band", ... */
constexpr std::string_view name_of(ReduceKind kind) {
  constexpr std::array<std::string_view, kReduceKindCount> kNames{
      "sum",  "average", "min",  "max",  "product", "premul_sum",
      "band", "bor",     "bxor", "land", "lor",     "lxor"};
  return kNames[static_cast<std::size_t>(kind)];
}

/** Whether elements of `dtype` can be reduced so: floats have neither bitwise nor logical
 * reductions, booleans nothing that calculates. */
constexpr bool has_reduction(DType dtype, ReduceKind kind) {
  const bool calculates = kind == ReduceKind::sum || kind == ReduceKind::average ||
                          kind == ReduceKind::product || kind == ReduceKind::premul_sum;
  if (dtype == DType::boolean) return !calculates;
  return is_integer(dtype) || calculates || kind == ReduceKind::min || kind == ReduceKind::max;
}

/**
 * A reduction. f16 and bf16 are accumulated in float. Integers wrap around on overflow; their
 * average is the sum divided by the number of ranks, rounded towards zero. A NaN makes the
 * minimum and the maximum NaN. Truth values are 0 and 1, whatever was not 0 before (between GPUs
 * only if the inputs are); so are all results of booleans, whose minimum is land and whose maximum
 * is lor. What a dtype does not have (has_reduction()) is refused.
 */
struct Reduce {
  ReduceKind kind = ReduceKind::sum;
  double factor = 1.0;  ///< of premul_sum, otherwise 1

  Reduce() = default;
  Reduce(ReduceKind kind_in) : kind(kind_in) {}

  static constexpr ReduceKind sum = ReduceKind::sum;
  static constexpr ReduceKind average = ReduceKind::average;
  static constexpr ReduceKind min = ReduceKind::min;
  static constexpr ReduceKind max = ReduceKind::max;
  static constexpr ReduceKind product = ReduceKind::product;
  static constexpr ReduceKind band = ReduceKind::band;
  static constexpr ReduceKind bor = ReduceKind::bor;
  static constexpr ReduceKind bxor = ReduceKind::bxor;
  static constexpr ReduceKind land = ReduceKind::land;
  static constexpr ReduceKind lor = ReduceKind::lor;
  static constexpr ReduceKind lxor = ReduceKind::lxor;
  /** The sum of factor * contribution. For integers, collectives refuse a `factor` that is no whole
   * number, or above 2^53, with InvalidArgument. */
  static Reduce premul_sum(double factor);
};

}  // namespace tutti
