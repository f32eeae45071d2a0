// Computes contributions and their reductions.
#include "support/data.hpp"

#include <algorithm>
#include <cmath>

namespace tutti::test {

namespace {

/** What makes two results one; of truth values if they are 0 or 1. */
double combined(ReduceKind kind, double a, double b) {
  const auto bits = [](double value) { return static_cast<std::int64_t>(value); };
  switch (kind) {
    case ReduceKind::min:
      return std::min(a, b);
    case ReduceKind::max:
      return std::max(a, b);
    case ReduceKind::product:
      return a * b;
    case ReduceKind::band:
    case ReduceKind::land:
      return static_cast<double>(bits(a) & bits(b));
    case ReduceKind::bor:
    case ReduceKind::lor:
      return static_cast<double>(bits(a) | bits(b));
    case ReduceKind::bxor:
    case ReduceKind::lxor:
      return static_cast<double>(bits(a) ^ bits(b));
    default:
      return a + b;
  }
}

}  // namespace

void write(const View& view, std::int64_t begin, std::span<const double> values) {
  dispatch(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* elements = static_cast<T*>(view.data) + begin;
    for (std::size_t i = 0; i < values.size(); ++i) elements[i] = element<T>(values[i]);
  });
}

::testing::AssertionResult are(const ConstView& view, std::int64_t begin,
                               std::span<const double> values) {
  return dispatch(view.dtype, [&](auto zero) -> ::testing::AssertionResult {
    using T = decltype(zero);
    const auto* elements = static_cast<const T*>(view.data) + begin;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T expected = element<T>(values[i]);
      if (elements[i] == expected) continue;
      return ::testing::AssertionFailure()
             << "element " << begin + static_cast<std::int64_t>(i) << " of " << view.count << " is "
             << number(elements[i]) << " instead of " << number(expected);
    }
    return ::testing::AssertionSuccess();
  });
}

double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i, int first) {
  const bool logical = dtype == DType::boolean || reduce.kind == ReduceKind::land ||
                       reduce.kind == ReduceKind::lor || reduce.kind == ReduceKind::lxor;
  const auto read = [&](int rank) {
    const double value = reduce.factor * contribution(dtype, reduce.kind, rank, i);
    if (logical) return value != 0.0 ? 1.0 : 0.0;
    return value;
  };
  double result = read(first);
  for (int rank = first + 1; rank < first + ranks; ++rank) {
    result = combined(reduce.kind, result, read(rank));
  }
  if (reduce.kind != ReduceKind::average) return result;
  if (is_integer(dtype)) return std::trunc(result / ranks);
  // The quotient is rounded once to the type that the sum is made in.
  if (dtype == DType::f64) return result / ranks;
  return static_cast<double>(static_cast<float>(result) / static_cast<float>(ranks));
}

std::vector<Reduce> reductions(DType dtype) {
  std::vector<Reduce> all;
  for (int i = 0; i < kReduceKindCount; ++i) {
    const auto kind = static_cast<ReduceKind>(i);
    if (!has_reduction(dtype, kind)) continue;
    const double factor = is_integer(dtype) ? 3.0 : 0.5;
    all.push_back(kind == ReduceKind::premul_sum ? Reduce::premul_sum(factor) : Reduce(kind));
  }
  return all;
}

}  // namespace tutti::test
