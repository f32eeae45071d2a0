// Computes contributions and their reductions.
#include "support/data.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "fastest.hpp"

namespace tutti::test {

namespace {

/** Calls body(value), where value(rank, i) is element `i` of what `rank` contributes. */
template <class Body>
void with_contribution(DType dtype, ReduceKind kind, const Body& body) {
  const bool negative = is_float(dtype) || is_signed_integer(dtype);
  switch (kind) {
    case ReduceKind::band:
    case ReduceKind::bor:
    case ReduceKind::bxor: {
      const int least = negative ? -128 : 0;
      return body([=](int rank, std::int64_t i) { return scrambled(rank, i, 256) + least; });
    }
    case ReduceKind::land:  // a quarter false, or true, so that neither result is rare
      return body([](int rank, std::int64_t i) { return scrambled(rank, i, 4); });
    case ReduceKind::lor:
    case ReduceKind::lxor:
      return body([](int rank, std::int64_t i) { return scrambled(rank, i, 4) == 0 ? 3 : 0; });
    case ReduceKind::product: {  // at most 3^4; no zero, which would hide the others
      const int twice = negative ? 2 : 0;
      return body([=](int rank, std::int64_t i) {
        return (scrambled(rank, i, 3) + 1) * (1 - twice * scrambled(rank + 64, i, 2));
      });
    }
    default: {
      const int least = negative ? -8 : 0;
      return body([=](int rank, std::int64_t i) { return scrambled(rank, i, 17) + least; });
    }
  }
}

template <class Combine>
void combine_each(std::span<double> results, std::span<const double> others,
                  const Combine& combine) {
  fastest([=] {
    for (std::size_t i = 0; i < results.size(); ++i) results[i] = combine(results[i], others[i]);
  });
}

/** Makes two results one; of truth values if they are 0 or 1. */
void combine(ReduceKind kind, std::span<double> results, std::span<const double> others) {
  const auto bits = [](double value) { return static_cast<std::int32_t>(value); };
  switch (kind) {
    case ReduceKind::min:
      return combine_each(results, others, [](double a, double b) { return std::min(a, b); });
    case ReduceKind::max:
      return combine_each(results, others, [](double a, double b) { return std::max(a, b); });
    case ReduceKind::product:
      return combine_each(results, others, [](double a, double b) { return a * b; });
    case ReduceKind::band:
    case ReduceKind::land:
      return combine_each(results, others, [&](double a, double b) { return bits(a) & bits(b); });
    case ReduceKind::bor:
    case ReduceKind::lor:
      return combine_each(results, others, [&](double a, double b) { return bits(a) | bits(b); });
    case ReduceKind::bxor:
    case ReduceKind::lxor:
      return combine_each(results, others, [&](double a, double b) { return bits(a) ^ bits(b); });
    default:
      return combine_each(results, others, [](double a, double b) { return a + b; });
  }
}

/** The average of `ranks` where sums are `sum`. */
double average(DType dtype, double sum, int ranks) {
  if (is_integer(dtype)) return std::trunc(sum / ranks);
  // The quotient is rounded once to the type that the sum is made in.
  if (dtype == DType::f64) return sum / ranks;
  return static_cast<double>(static_cast<float>(sum) / static_cast<float>(ranks));
}

}  // namespace

void write(const View& view, std::int64_t begin, std::span<const double> values) {
  dispatch(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* elements = static_cast<T*>(view.data) + begin;
    fastest([=] {
      for (std::size_t i = 0; i < values.size(); ++i) elements[i] = element<T>(values[i]);
    });
  });
}

::testing::AssertionResult are(const ConstView& view, std::int64_t begin,
                               std::span<const double> values) {
  return dispatch(view.dtype, [&](auto zero) -> ::testing::AssertionResult {
    using T = decltype(zero);
    // A byte of neither 0 nor 1 is no truth value.
    using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
    const auto* elements = static_cast<const Stored*>(view.data) + begin;
    bool all_are = true;  // first, as it takes many at a time
    fastest([=, &all_are] {
      bool all = true;
      for (std::size_t i = 0; i < values.size(); ++i) {
        all &= elements[i] == static_cast<Stored>(element<T>(values[i]));
      }
      all_are = all;
    });
    for (std::size_t i = 0; i < values.size() && !all_are; ++i) {
      const auto expected = static_cast<Stored>(element<T>(values[i]));
      if (elements[i] == expected) continue;
      return ::testing::AssertionFailure()
             << "element " << begin + static_cast<std::int64_t>(i) << " of " << view.count << " is "
             << number(elements[i]) << " instead of " << number(expected);
    }
    return ::testing::AssertionSuccess();
  });
}

void Contribution::compute(std::int64_t begin, std::span<double> values) const {
  with_contribution(dtype, kind, [from = first + begin, own = rank, values](const auto& value) {
    fastest([=] {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = value(own, from + static_cast<std::int64_t>(i));
      }
    });
  });
}

void Reduced::compute(std::int64_t begin, std::span<double> values) const {
  const bool logical = dtype == DType::boolean || reduce.kind == ReduceKind::land ||
                       reduce.kind == ReduceKind::lor || reduce.kind == ReduceKind::lxor;
  const auto read = [&](int rank, std::span<double> into) {
    Contribution{dtype, reduce.kind, rank, first}.compute(begin, into);
    if (reduce.kind == ReduceKind::premul_sum) {
      for (double& value : into) value *= reduce.factor;
    }
    if (!logical) return;
    for (double& value : into) value = value != 0.0 ? 1.0 : 0.0;
  };
  std::array<double, kStretch> memory;
  const std::span<double> others = std::span(memory).first(values.size());
  read(first_rank, values);
  for (int rank = first_rank + 1; rank < first_rank + ranks; ++rank) {
    read(rank, others);
    combine(reduce.kind, values, others);
  }
  if (reduce.kind != ReduceKind::average) return;
  for (double& value : values) value = average(dtype, value, ranks);
}

double contribution(DType dtype, ReduceKind kind, int rank, std::int64_t i) {
  double value = 0;
  Contribution{dtype, kind, rank}.compute(i, std::span(&value, 1));
  return value;
}

double reduced(DType dtype, const Reduce& reduce, int ranks, std::int64_t i, int first) {
  double value = 0;
  Reduced{dtype, reduce, ranks, 0, first}.compute(i, std::span(&value, 1));
  return value;
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
