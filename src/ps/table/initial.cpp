// Makes random initial values of counters, in arithmetic that has the same last bit everywhere.
#include "ps/table/initial.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "base/siphash.hpp"
#include "ps/table/place.hpp"

namespace tutti::ps {
namespace {

constexpr std::int64_t kChunk = 16;  // columns: short loops over them become vector instructions
constexpr float kStep = 0x1p-24F;    // random numbers have 24 bits, all that an f32 can hold

using Bits = std::array<std::uint32_t, kChunk>;
using Values = std::array<float, kChunk>;

/** SplitMix64 (Steele, Lea and Flood 2014): output n is the mix of the n-th multiple of an odd
 * number, so that any column can be had alone. Two columns share an output. */
class Columns {
 public:
  Columns(std::uint64_t seed, std::int64_t id)
      : key_(mix64(seed ^ mix64(static_cast<std::uint64_t>(id)))) {}

  /** 24 bits for each of the next kChunk columns. */
  void next(Bits& bits) {
    for (std::size_t i = 0; i < bits.size(); i += 2) {
      key_ += 0x9e3779b97f4a7c15ULL;
      const std::uint64_t mixed = mix64(key_);
      bits[i] = static_cast<std::uint32_t>(mixed >> 40U);
      bits[i + 1] = static_cast<std::uint32_t>(mixed) >> 8U;
    }
  }

 private:
  std::uint64_t key_;
};

/** ln(x) of a normal number, to 1e-7 or so: that of its mantissa by the series of the area tangent,
 * and its exponent. */
float logarithm(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // The mantissa is brought into [sqrt(1/2), sqrt(2)).
  const std::uint32_t shifted = bits - 0x3f3504f3U;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const auto mantissa = std::bit_cast<float>((shifted & 0x007fffffU) + 0x3f3504f3U);
  const float t = (mantissa - 1.0F) / (mantissa + 1.0F);
  const float tt = t * t;
  const float series =
      2.0F + tt * (0.6666667F + tt * (0.4F + tt * (0.28571429F + tt * 0.2222222F)));
  return exponent * 0.69314718F + t * series;
}

template <std::size_t n>
float polynomial(float x, const std::array<float, n>& coefficients) {
  float sum = coefficients[0];
  for (std::size_t i = 1; i < n; ++i) sum = sum * x + coefficients[i];
  return sum;
}

/**
 * The quantiles of the normal distribution at (1 + x) / 2, to 1e-6, for |x| < 1: M. Giles,
 * "Approximating the erfinv function", GPU Computing Gems, 2010. The few in the tails are made
 * apart, so that the others are without branches. (Square roots are exact to the last bit on every
 * machine, the C library's logarithms are not.)
 */
void normal_quantiles(const Values& x, Values& quantiles) {
  static constexpr std::array kCentral{2.81022636e-08F,  3.43273939e-07F, -3.5233877e-06F,
                                       -4.39150654e-06F, 0.00021858087F,  -0.00125372503F,
                                       -0.00417768164F,  0.246640727F,    1.50140941F};
  static constexpr std::array kTail{-0.000200214257F, 0.000100950558F, 0.00134934322F,
                                    -0.00367342844F,  0.00573950773F,  -0.0076224613F,
                                    0.00943887047F,   1.00167406F,     2.83297682F};
  constexpr float kRootOfTwo = 1.41421356F;
  Values w;
  for (std::size_t i = 0; i < x.size(); ++i) {
    w[i] = -logarithm((1.0F - x[i]) * (1.0F + x[i]));
    quantiles[i] = kRootOfTwo * x[i] * polynomial(w[i] - 2.5F, kCentral);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (w[i] < 5.0F) continue;
    quantiles[i] = kRootOfTwo * x[i] * polynomial(std::sqrt(w[i]) - 3.0F, kTail);
  }
}

void fill(const Constant& initial, Columns /*columns*/, std::span<float> row) {
  std::fill(row.begin(), row.end(), initial.value);
}

/** make gives kChunk values of the bits of as many columns. */
template <class Make>
void fill_chunks(Columns columns, std::span<float> row, const Make& make) {
  Bits bits;
  Values values;
  while (!row.empty()) {
    columns.next(bits);
    make(bits, values);
    const auto part = std::min(row.size(), values.size());
    std::copy_n(values.begin(), part, row.begin());
    row = row.subspan(part);
  }
}

void fill(const Uniform& initial, Columns columns, std::span<float> row) {
  const double low = initial.low;
  const double width = static_cast<double>(initial.high) - low;
  fill_chunks(columns, row, [&](const Bits& bits, Values& values) {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const double fraction = static_cast<float>(static_cast<std::int32_t>(bits[i])) * kStep;
      const auto value = static_cast<float>(low + width * fraction);
      values[i] = value < initial.high ? value : initial.low;  // where it was rounded up to `high`
    }
  });
}

void fill(const Normal& initial, Columns columns, std::span<float> row) {
  fill_chunks(columns, row, [&](const Bits& bits, Values& values) {
    Values x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Odd multiples of 2^-24: never 0, 1 or -1, and as many on either side.
      const auto odd = 2 * static_cast<std::int32_t>(bits[i]) + 1 - (1 << 24);
      x[i] = static_cast<float>(odd) * kStep;
    }
    normal_quantiles(x, values);
    for (float& value : values) value = initial.mean + initial.deviation * value;
  });
}

}  // namespace

std::uint64_t table_seed(std::uint64_t seed, const std::string& table) {
  return siphash(SipKey{.low = seed}, std::as_bytes(std::span(table)));
}

void fill_initial(const Initial& initial, std::uint64_t seed, std::int64_t id, std::int64_t dim,
                  float* row) {
  const std::span values(row, static_cast<std::size_t>(dim));
  std::visit([&](const auto& kind) { fill(kind, Columns(seed, id), values); }, initial);
}

}  // namespace tutti::ps
