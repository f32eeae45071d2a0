// Computes contributions and their reductions.
#include "support/data.hpp"

#include <algorithm>
#include <cmath>

namespace tutti::test {

double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i, int first) {
  double result = reduce.factor * contribution(dtype, reduce.kind, first, i);
  for (int rank = first + 1; rank < first + ranks; ++rank) {
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

}  // namespace tutti::test
