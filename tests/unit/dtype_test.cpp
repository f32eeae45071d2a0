// Conversions between float and the 16-bit types, against their definition.
#include "tutti/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/floats.hpp"

namespace tutti {
namespace {

/** A binary floating-point format: bits of the fraction, and the smallest exponent of a normal. */
struct Format {
  int fraction_bits;
  int lowest_exponent;
};
constexpr Format kHalf{10, -14};
constexpr Format kBFloat16{7, -126};

/** The magnitude of the value whose bits, without the sign, are `bits`; not for infinity, NaN. */
double value_of(std::uint32_t bits, Format format) {
  const auto exponent = static_cast<int>(bits >> format.fraction_bits);
  const std::uint32_t fraction = bits & ((1U << format.fraction_bits) - 1U);
  if (exponent == 0) return std::ldexp(fraction, format.lowest_exponent - format.fraction_bits);
  return std::ldexp(fraction + (1U << format.fraction_bits),
                    format.lowest_exponent - format.fraction_bits + exponent - 1);
}

/** The bits of the format's number nearest to a finite magnitude: ties go to the even one. */
std::uint32_t nearest(double magnitude, Format format) {
  if (magnitude == 0.0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
  exponent = std::max(exponent - 1, format.lowest_exponent);
  // In units of the last place; a fraction that rounds up to 2.0 carries into the exponent.
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const auto step = static_cast<std::uint32_t>(exponent - format.lowest_exponent);
  return static_cast<std::uint32_t>(units) + (step << format.fraction_bits);
}

std::uint32_t expected_bits(float value, Format format) {
  const std::uint32_t infinity = format.fraction_bits == 10 ? 0x7C00U : 0x7F80U;
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return sign | infinity;
  return sign | std::min(nearest(magnitude, format), infinity);
}

/** Floats of every exponent and both signs, with fractions around every kind of tie; no NaN. */
std::vector<float> samples() {
  std::vector<std::uint32_t> fractions;
  for (std::uint32_t high = 0; high < 0x800000U; high += 0x1000U * 37U) fractions.push_back(high);
  for (const std::uint32_t odd : {0U, 1U}) {
    for (const unsigned dropped : {13U, 16U}) {
      for (const std::uint32_t low : {0x1U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
        fractions.push_back((odd << dropped) | low);
        fractions.push_back(0x7FFFFFU - ((odd << dropped) | low));
      }
    }
  }
  for (unsigned bit = 0; bit < 23; ++bit) fractions.push_back(1U << bit);
  std::vector<float> result;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t fraction : fractions) {
      const float value = std::bit_cast<float>((exponent << 23U) | fraction);
      result.push_back(value);
      result.push_back(-value);
    }
  }
  result.push_back(kInf);
  result.push_back(-kInf);
  return result;
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::i64), 8);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_EQ(name_of(DType::f32), "f32");
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(name_of(DType::u8), "u8");
}

TEST(DType, EveryHalfToFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = to_float(Half{static_cast<std::uint16_t>(bits)});
    const std::uint32_t magnitude = bits & 0x7FFFU;
    EXPECT_EQ(std::signbit(value), bits >= 0x8000U) << bits;
    if (magnitude > 0x7C00U) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU,
                0x7FC00000U | ((magnitude & 0x3FFU) << 13U))
          << bits;
    } else if (magnitude == 0x7C00U) {
      EXPECT_EQ(std::fabs(value), kInf) << bits;
    } else {
      EXPECT_EQ(std::fabs(static_cast<double>(value)), value_of(magnitude, kHalf)) << bits;
    }
  }
}

TEST(DType, EveryBFloat16ToFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16U);
    const std::uint32_t magnitude = bits & 0x7FFFU;
    if (magnitude < 0x7F80U) {
      EXPECT_EQ(std::fabs(static_cast<double>(value)), value_of(magnitude, kBFloat16)) << bits;
    }
  }
}

TEST(DType, FloatToHalfRoundsToNearestEven) {
  for (const float value : samples()) {
    ASSERT_EQ(to_half(value).bits, expected_bits(value, kHalf)) << value;
  }
}

TEST(DType, FloatToBFloat16RoundsToNearestEven) {
  for (const float value : samples()) {
    ASSERT_EQ(to_bfloat16(value).bits, expected_bits(value, kBFloat16)) << value;
  }
}

TEST(DType, KnownRoundings) {
  EXPECT_EQ(to_half(65504.0F).bits, 0x7BFF);         // the largest
  EXPECT_EQ(to_half(65519.996F).bits, 0x7BFF);       // just below the tie with 65536
  EXPECT_EQ(to_half(65520.0F).bits, 0x7C00);         // the tie goes to infinity
  EXPECT_EQ(to_half(0x1p-24F).bits, 0x0001);         // the smallest subnormal
  EXPECT_EQ(to_half(0x1p-25F).bits, 0x0000);         // a tie with zero
  EXPECT_EQ(to_half(0x1.000002p-25F).bits, 0x0001);  // just above it
  EXPECT_EQ(to_half(0x1.FFCp-15F).bits, 0x0400);     // a tie: up to the smallest normal
  EXPECT_EQ(to_half(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_half(1.0F + 0x1p-11F).bits, 0x3C00);  // ties to even
  EXPECT_EQ(to_half(1.0F + 0x3p-11F).bits, 0x3C02);
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F).bits, 0x3F80);  // ties to even
  EXPECT_EQ(to_bfloat16(1.0F + 0x3p-8F).bits, 0x3F82);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  static_assert(to_float(to_half(-1.5F)) == -1.5F && to_float(to_bfloat16(-1.5F)) == -1.5F);
}

TEST(DType, NanStaysNanAndKeepsItsSignAndUpperPayload) {
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    for (std::uint32_t payload = 1; payload < 0x800000U; payload += payload < 64 ? 1 : 997) {
      const std::uint32_t bits = sign | 0x7F800000U | payload;
      const float nan = std::bit_cast<float>(bits);
      EXPECT_EQ(to_half(nan).bits, (sign >> 16U) | 0x7E00U | (payload >> 13U)) << payload;
      EXPECT_EQ(to_bfloat16(nan).bits, (bits >> 16U) | 0x40U) << payload;
    }
  }
}

TEST(DType, SixteenBitValuesSurviveTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const BFloat16 bfloat{static_cast<std::uint16_t>(bits)};
    const bool half_nan = (bits & 0x7FFFU) > 0x7C00U;
    const bool bfloat_nan = (bits & 0x7FFFU) > 0x7F80U;
    EXPECT_EQ(to_half(to_float(half)).bits, half_nan ? bits | 0x200U : bits);
    EXPECT_EQ(to_bfloat16(to_float(bfloat)).bits, bfloat_nan ? bits | 0x40U : bits);
  }
}

TEST(DType, PartsOfViews) {
  std::vector<double> data(10);
  const View view{std::span(data)};
  EXPECT_EQ(view.bytes(), 80);
  const View part = view.part(3, 4);
  EXPECT_EQ(part.data, &data[3]);
  EXPECT_EQ(part.count, 4);
  EXPECT_EQ(part.dtype, DType::f64);
  const ConstView read = ConstView(view).part(2, 1);
  EXPECT_EQ(read.data, &data[2]);
  EXPECT_EQ(read.bytes(), 8);
}

}  // namespace
}  // namespace tutti
