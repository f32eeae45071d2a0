// The kernels that prepare gradients for the wire, of every instruction set of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "support/floats.hpp"
#include "tutti/dtype.hpp"
#include "tutti/error.hpp"

namespace tutti::cpu {
namespace {

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> result;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (find_table(isa) != nullptr) result.push_back(find_table(isa));
  }
  return result;
}

/** Values of all magnitudes, and the ones that are special. */
std::vector<float> values(std::int64_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<float> result;
  const float special[] = {0.0F,  -0.0F,  1.0F,  65504.0F, 65520.0F, -1e6F,
                           1e-8F, -6e-8F, 3e38F, kInf,     -kInf,    kNan};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    const float any = std::bit_cast<float>(bits);
    result.push_back(i % 5 == 0 ? special[bits % std::size(special)] : any);
  }
  return result;
}

float clip(float value, float limit) {
  if (!std::isfinite(value) || limit == 0.0F) return value;
  return std::fmin(std::fmax(value, -limit), limit);
}

std::uint16_t narrowed(float value, DType wire) {
  return wire == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
}

float widened(std::uint16_t bits, DType wire) {
  return wire == DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> result;
  for (std::int64_t count = 0; count <= 70; ++count) result.push_back(count);
  result.insert(result.end(), {127, 128, 129, 1000});
  return result;
}

TEST(WireKernels, NarrowClipsScalesAndRoundsOnce) {
  for (const KernelTable* table : tables()) {
    for (const DType wire : {DType::f16, DType::bf16}) {
      for (const std::int64_t count : sizes()) {
        for (const float limit : {0.0F, 100.0F}) {
          const std::vector<float> from = values(count);
          std::vector<std::uint16_t> to(static_cast<std::size_t>(count) + 1, 0xABCD);
          const float scale = 1.0F / 3.0F;
          table->narrow[wire == DType::f16 ? 0 : 1](from.data(), to.data(), count, {scale, limit});
          for (std::size_t i = 0; i < from.size(); ++i) {
            const float expected = clip(from[i], limit) * scale;
            if (std::isnan(expected)) {
              EXPECT_TRUE(std::isnan(widened(to[i], wire)));
            } else {
              ASSERT_EQ(to[i], narrowed(expected, wire)) << from[i] << " " << name_of(wire);
            }
          }
          EXPECT_EQ(to.back(), 0xABCD);
        }
      }
    }
  }
}

TEST(WireKernels, WidenScalesAndCountsWhatIsNotFinite) {
  for (const KernelTable* table : tables()) {
    for (const DType wire : {DType::f16, DType::bf16}) {
      for (const std::int64_t count : sizes()) {
        std::vector<std::uint16_t> from;
        for (const float value : values(count)) from.push_back(narrowed(value, wire));
        std::vector<float> to(from.size() + 1, 7.0F);
        std::int64_t not_finite = 0;
        for (const std::uint16_t bits : from) {
          if (!std::isfinite(widened(bits, wire) * 3.0F)) ++not_finite;
        }
        EXPECT_EQ(table->widen[wire == DType::f16 ? 0 : 1](from.data(), to.data(), count, 3.0F),
                  not_finite);
        for (std::size_t i = 0; i < from.size(); ++i) {
          const float expected = widened(from[i], wire) * 3.0F;
          ASSERT_TRUE(to[i] == expected || (std::isnan(to[i]) && std::isnan(expected)));
        }
        EXPECT_EQ(to.back(), 7.0F);
      }
    }
  }
}

TEST(WireKernels, WidenCountsBeyondOneBlock) {
  const std::vector<std::uint16_t> from((1U << 20U) + 77, to_half(kNan).bits);
  std::vector<float> to(from.size());
  const auto count = static_cast<std::int64_t>(from.size());
  for (const KernelTable* table : tables()) {
    EXPECT_EQ(table->widen[0](from.data(), to.data(), count, 1.0F), count);
  }
}

TEST(WireKernels, AccumulateRoundsEachStep) {
  for (const KernelTable* table : tables()) {
    for (const std::int64_t count : sizes()) {
      const std::vector<float> term = values(count);
      std::vector<float> sum(term.rbegin(), term.rend());
      const std::vector<float> before = sum;
      sum.push_back(7.0F);
      table->accumulate(sum.data(), term.data(), count, 0.9F, 0.3F);
      for (std::size_t i = 0; i < term.size(); ++i) {
        const float decayed = before[i] * 0.9F;
        const float scaled = term[i] * 0.3F;
        const float expected = decayed + scaled;
        ASSERT_TRUE(std::isnan(expected) ? std::bit_cast<std::uint32_t>(sum[i]) == 0x7FC00000U
                                         : std::bit_cast<std::uint32_t>(sum[i]) ==
                                               std::bit_cast<std::uint32_t>(expected));
      }
      EXPECT_EQ(sum.back(), 7.0F);
    }
  }
}

TEST(WireKernels, TheSquaredNormHasTheSameBitsEverywhere) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::int64_t count : sizes()) {
    std::vector<float> elements;
    double sums[16] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      elements.push_back(normal(random));
      const double value = static_cast<double>(elements.back());
      sums[i % 16] += value * value;
    }
    double expected = 0.0;
    for (const double sum : sums) expected += sum;
    for (const KernelTable* table : tables()) {
      EXPECT_EQ(table->squared_norm(elements.data(), count), expected) << count;
    }
  }
  const std::vector<float> infinite{1.0F, -kInf, 2.0F};
  EXPECT_EQ(squared_norm(infinite.data(), 3), static_cast<double>(kInf));
}

TEST(WireKernels, OnlySixteenBitsAreWireTypes) {
  float value = 1.0F;
  EXPECT_THROW(narrow(&value, &value, 1, DType::f32, {}), InvalidArgument);
  EXPECT_THROW(widen(&value, &value, 1, DType::i64, 1.0F), InvalidArgument);
}

}  // namespace
}  // namespace tutti::cpu
