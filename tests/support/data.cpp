// Computes contributions and their reductions.
#include "support/data.hpp"

#include <algorithm>
#include <cmath>

namespace tutti::test {
namespace {

/** A number from 0 to below - 1. */
int scrambled(int rank, std::int64_t i, int below) {
  constexpr std::uint64_t kByElement = 0x9E3779B97F4A7C15;
  constexpr std::uint64_t kByRank = 0xC2B2AE3D27D4EB4F;
  std::uint64_t h = static_cast<std::uint64_t>(i) * kByElement;
  h += static_cast<std::uint64_t>(rank) * kByRank + 1;
  h = (h ^ (h >> 32U)) * std::uint64_t{0xD6E8FEB86659FD93};
  return static_cast<int>((h >> 40U) % static_cast<std::uint64_t>(below));
}

}  // namespace

double contribution(DType dtype, ReduceKind kind, int rank, std::int64_t i) {
  const bool negative = dtype != DType::u8;
  if (kind == ReduceKind::product) {  // at most 3^4; no zero, which would hide the others
    const int magnitude = scrambled(rank, i, 3) + 1;
    return negative && scrambled(rank + 64, i, 2) != 0 ? -magnitude : magnitude;
  }
  return scrambled(rank, i, 17) - (negative ? 8 : 0);
}

double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i) {
  double result = reduce.factor * contribution(dtype, reduce.kind, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = reduce.factor * contribution(dtype, reduce.kind, rank, i);
    if (reduce.kind == ReduceKind::min) {
      result = std::min(result, next);
    } else if (reduce.kind == ReduceKind::max) {
      result = std::max(result, next);
    } else if (reduce.kind == ReduceKind::product) {
      result *= next;
    } else {
      result += next;
    }
  }
  if (reduce.kind != ReduceKind::average) return result;
  if (is_integer(dtype)) return std::trunc(result / ranks);
  // The quotient is rounded once to the type that the sum is made in.
  if (dtype == DType::f64) return result / ranks;
  return static_cast<double>(static_cast<float>(result) / static_cast<float>(ranks));
}

std::array<Reduce, kReduceKindCount> reductions(DType dtype) {
  const Reduce scaled = Reduce::premul_sum(is_integer(dtype) ? 3.0 : 0.5);
  return {Reduce::sum, Reduce::average, Reduce::min, Reduce::max, Reduce::product, scaled};
}

std::string_view name_of(ReduceKind kind) {
  constexpr std::array<std::string_view, kReduceKindCount> kNames{"sum", "average", "min",
                                                                  "max", "product", "premul_sum"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace tutti::test
