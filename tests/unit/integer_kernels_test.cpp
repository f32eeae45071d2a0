// Reductions of integers and truth values by every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "support/data.hpp"
#include "support/kernels.hpp"

namespace tutti::cpu {
namespace {

using test::available;
using test::reduce_values;

TEST(IntegerKernels, IntegersWrapAroundAndDivideTowardsZero) {
  constexpr auto kMax32 = std::numeric_limits<std::int32_t>::max();
  constexpr auto kMin32 = std::numeric_limits<std::int32_t>::min();
  constexpr auto kMax64 = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin64 = std::numeric_limits<std::int64_t>::min();
  using I32 = std::vector<std::int32_t>;
  using I64 = std::vector<std::int64_t>;
  using U8 = std::vector<std::uint8_t>;
  for (const Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    EXPECT_EQ(reduce_values<std::int32_t>(isa, {{kMax32, kMin32}, {1, -1}}, {}),
              (I32{kMin32, kMax32}));
    EXPECT_EQ(reduce_values<std::int64_t>(isa, {{kMax64, kMin64}, {1, -1}}, {}),
              (I64{kMin64, kMax64}));
    EXPECT_EQ(reduce_values<std::uint8_t>(isa, {{250}, {10}}, {}), (U8{4}));
    EXPECT_EQ(reduce_values<std::int32_t>(isa, {{65536, kMin32}, {65537, -1}},
                                          {.kind = ReduceKind::product}),
              (I32{65536, kMin32}));
    EXPECT_EQ(reduce_values<std::int64_t>(isa, {{(1LL << 40) + 3}, {1LL << 30}},
                                          {.kind = ReduceKind::product}),
              (I64{3LL << 30}));
    EXPECT_EQ(reduce_values<std::int32_t>(isa, {{-7, 7, -8, 1}, {0, 0, 0, 0}}, {.divisor = 2}),
              (I32{-3, 3, -4, 0}));
    EXPECT_EQ(reduce_values<std::int64_t>(isa, {{-7, kMin64}, {0, 0}}, {.divisor = 3}),
              (I64{-2, kMin64 / 3}));
    EXPECT_EQ(reduce_values<std::uint8_t>(isa, {{200, 255}, {55, 0}}, {.divisor = 2}),
              (U8{127, 127}));
    EXPECT_EQ(reduce_values<std::uint8_t>(isa, {{200}, {55}}, {.divisor = 256}), (U8{0}));
    EXPECT_EQ(reduce_values<std::int32_t>(isa, {{5, kMin32}, {-2, 0}}, {.factor = -3.0}),
              (I32{-9, kMin32}));
    EXPECT_EQ(reduce_values<std::int64_t>(isa, {{5}, {-2}}, {.factor = 0x1p62}), (I64{3LL << 62}));
    EXPECT_EQ(reduce_values<std::uint8_t>(isa, {{5}, {1}}, {.factor = -1.0}), (U8{250}));
    EXPECT_EQ(
        reduce_values<std::int32_t>(isa, {{kMin32, 3}, {kMax32, -3}}, {.kind = ReduceKind::min}),
        (I32{kMin32, -3}));
    EXPECT_EQ(reduce_values<std::uint8_t>(isa, {{200}, {100}}, {.kind = ReduceKind::max}),
              (U8{200}));
  }
}

TEST(IntegerKernels, ElementsOfOneWidthDifferBySign) {
  using I8 = std::vector<std::int8_t>;
  using U16 = std::vector<std::uint16_t>;
  using U64 = std::vector<std::uint64_t>;
  constexpr auto kMax64 = std::numeric_limits<std::uint64_t>::max();
  for (const Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    EXPECT_EQ(reduce_values<std::int8_t>(isa, {{-128, 127}, {-1, 1}}, {}), (I8{127, -128}));
    EXPECT_EQ(reduce_values<std::int8_t>(isa, {{-7, 100}, {0, 0}}, {.divisor = 2}), (I8{-3, 50}));
    EXPECT_EQ(reduce_values<std::int8_t>(isa, {{-7, 100}, {7, -100}}, {ReduceKind::min}),
              (I8{-7, -100}));
    EXPECT_EQ(reduce_values<std::uint16_t>(isa, {{65535}, {65535}}, {.divisor = 2}), (U16{32767}));
    EXPECT_EQ(reduce_values<std::uint16_t>(isa, {{65529}, {7}}, {ReduceKind::max}), (U16{65529}));
    EXPECT_EQ(reduce_values<std::uint64_t>(isa, {{kMax64}, {0}}, {.divisor = 2}),
              (U64{kMax64 / 2}));
    EXPECT_EQ(reduce_values<std::uint64_t>(isa, {{kMax64}, {1}}, {ReduceKind::min}), (U64{1}));
    EXPECT_EQ(reduce_values<std::uint64_t>(isa, {{kMax64}, {2}}, {}), (U64{1}));
  }
}

TEST(IntegerKernels, BitsAndTruthValues) {
  using I32 = std::vector<std::int32_t>;
  using Bytes = std::vector<std::uint8_t>;
  const std::vector<I32> ins{{12, -1, 0, 0}, {10, 7, 0, -5}, {6, 2, 0, 0}};
  const Bytes booleans{0, 1, 2, 255};  // a byte of another program is true unless it is 0
  for (const Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    const auto reduced = [&](ReduceKind kind) {
      return reduce_values<std::int32_t>(isa, ins, {kind});
    };
    EXPECT_EQ(reduced(ReduceKind::band), (I32{0, 2, 0, 0}));
    EXPECT_EQ(reduced(ReduceKind::bor), (I32{14, -1, 0, -5}));
    EXPECT_EQ(reduced(ReduceKind::bxor), (I32{0, -6, 0, -5}));
    EXPECT_EQ(reduced(ReduceKind::land), (I32{1, 1, 0, 0}));
    EXPECT_EQ(reduced(ReduceKind::lor), (I32{1, 1, 0, 1}));
    EXPECT_EQ(reduced(ReduceKind::lxor), (I32{1, 1, 0, 1}));
    for (int kind = 0; kind < kReduceKindCount; ++kind) {
      if (!has_reduction(DType::boolean, static_cast<ReduceKind>(kind))) continue;
      Bytes out(booleans.size());
      void* to = out.data();
      const void* from = booleans.data();
      reduce(table(isa), std::span(&to, 1), std::span(&from, 1), 4, DType::boolean,
             {static_cast<ReduceKind>(kind)});
      EXPECT_EQ(out, (Bytes{0, 1, 1, 1})) << "also of one input";
    }
  }
}

TEST(IntegerKernels, EveryReductionOfADTypeHasOne) {
  for (const Isa isa : available()) {
    for (const DType dtype : test::kDTypes) {
      for (int kind = 0; kind < kReduceKindCount; ++kind) {
        const bool is_there = table(isa)
                                  .reduce.at(static_cast<std::size_t>(dtype))
                                  .at(static_cast<std::size_t>(kind)) != nullptr;
        EXPECT_EQ(is_there, has_reduction(dtype, static_cast<ReduceKind>(kind)))
            << name_of(isa) << " " << tutti::name_of(dtype) << " " << kind;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::cpu
