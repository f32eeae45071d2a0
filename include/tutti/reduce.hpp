// Reductions: how the contributions of the ranks become one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

/** How the contributions of the ranks are combined, element by element. */
enum class ReduceKind : std::uint8_t { sum, average, min, max, product, premul_sum };

inline constexpr int kReduceKindCount = 6;

/** "sum", "average", "min", "max", "product" or "premul_sum". */
constexpr std::string_view name_of(ReduceKind kind) {
  constexpr std::array<std::string_view, kReduceKindCount> kNames{"sum", "average", "min",
                                                                  "max", "product", "premul_sum"};
  return kNames[static_cast<std::size_t>(kind)];
}

/**
 * A reduction. f16 and bf16 are accumulated in float. Integers wrap around on overflow; their
 * average is the sum divided by the number of ranks, rounded towards zero. A NaN makes the
 * minimum and the maximum NaN.
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
  /** The sum of factor * contribution. For integers, `factor` is a whole number. */
  static Reduce premul_sum(double factor);
};

}  // namespace tutti
