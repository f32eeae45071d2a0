// The reduction kernels of every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/reduction.hpp"
#include "support/data.hpp"
#include "support/kernels.hpp"
#include "tutti/error.hpp"

namespace tutti::cpu {
namespace {

using test::available;
using test::element;
using test::kDTypes;
using test::kIsas;
using test::number;
using test::reduce_values;

/** `count` elements between guard bytes, one element off the alignment of a vector. */
class Array {
 public:
  Array(std::int64_t count, DType dtype)
      : bytes_(static_cast<std::size_t>(count * size_of(dtype)) + 2 * kGuard, kMark),
        count_(count),
        dtype_(dtype) {}

  View view() { return {bytes_.data() + offset(), count_, dtype_}; }
  template <class T>
  std::span<T> as() {
    return {static_cast<T*>(view().data), static_cast<std::size_t>(count_)};
  }
  bool guards_intact() const {
    const std::size_t end = offset() + static_cast<std::size_t>(count_ * size_of(dtype_));
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < offset() || i >= end) && bytes_[i] != kMark) return false;
    }
    return true;
  }
  bool operator==(const Array&) const = default;

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};
  std::size_t offset() const { return kGuard + static_cast<std::size_t>(size_of(dtype_)); }

  std::vector<std::byte> bytes_;
  std::int64_t count_;
  DType dtype_;
};

/** Runs the kernels of `isa` from `ins` to `outs`. */
void run(Isa isa, const std::vector<Array*>& outs, const std::vector<Array*>& ins,
         const Combine& combine) {
  std::vector<void*> out_data;
  std::vector<const void*> in_data;
  for (Array* out : outs) out_data.push_back(out->view().data);
  for (Array* in : ins) in_data.push_back(in->view().data);
  reduce(table(isa), out_data, in_data, ins[0]->view().count, ins[0]->view().dtype, combine);
}

std::vector<Array*> pointers(std::vector<Array>& arrays) {
  std::vector<Array*> result;
  for (Array& array : arrays) result.push_back(&array);
  return result;
}

std::string context(Isa isa, DType dtype, ReduceKind kind, std::int64_t count, int inputs) {
  return std::string(name_of(isa)) + " " + std::string(name_of(dtype)) + " " +
         std::string(tutti::name_of(kind)) + ", " + std::to_string(count) + " elements of " +
         std::to_string(inputs) + " inputs";
}

/** Around the lengths of vectors and of strips of them, in elements of any size. */
std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> result;
  for (std::int64_t count = 0; count <= 70; ++count) result.push_back(count);
  for (const std::int64_t middle : {128, 256, 1024, 4096}) {
    for (const std::int64_t delta : {-1, 0, 1}) result.push_back(middle + delta);
  }
  return result;
}

void expect_exact(Isa isa, DType dtype, const Reduce& reduce, std::int64_t count, int inputs) {
  SCOPED_TRACE(context(isa, dtype, reduce.kind, count, inputs));
  std::vector<Array> ins(static_cast<std::size_t>(inputs), Array(count, dtype));
  for (int rank = 0; rank < inputs; ++rank) {
    test::fill(ins[static_cast<std::size_t>(rank)].view(),
               [&](std::int64_t i) { return test::contribution(dtype, reduce.kind, rank, i); });
  }
  const std::vector<Array> before = ins;
  std::vector<Array> outs(static_cast<std::size_t>(1 + count % 3), Array(count, dtype));
  run(isa, pointers(outs), pointers(ins), combine_of(reduce, inputs));
  for (Array& out : outs) {
    ASSERT_TRUE(test::holds(
        out.view(), [&](std::int64_t i) { return test::reduced(dtype, reduce, inputs, i); }));
    ASSERT_TRUE(out.guards_intact());
  }
  ASSERT_EQ(ins, before);
}

TEST(Kernels, EveryDTypeKindAndSizeIsExact) {
  for (const Isa isa : available()) {
    for (const DType dtype : kDTypes) {
      for (const Reduce& reduce : test::reductions(dtype)) {
        for (const std::int64_t count : sizes()) {
          expect_exact(isa, dtype, reduce, count, 1 + static_cast<int>(count % 4));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Kernels, ManyInputs) {
  for (const Isa isa : available()) {
    for (const DType dtype : kDTypes) {
      for (const Reduce& reduce : test::reductions(dtype)) {
        if (reduce.kind == ReduceKind::product || reduce.kind == ReduceKind::average) continue;
        expect_exact(isa, dtype, reduce, 1000, 15);
      }
    }
  }
}

TEST(Kernels, AnOutputMayBeAnInput) {
  constexpr std::int64_t kCount = 777;
  for (const Isa isa : available()) {
    for (const DType dtype : kDTypes) {
      for (const Reduce& reduce : test::reductions(dtype)) {
        // One output in the place of each input in turn, then all inputs at once.
        for (std::size_t place = 0; place <= 4; ++place) {
          SCOPED_TRACE(context(isa, dtype, reduce.kind, kCount, 4));
          std::vector<Array> arrays(4, Array(kCount, dtype));
          for (int rank = 0; rank < 4; ++rank) {
            test::fill(arrays[static_cast<std::size_t>(rank)].view(), [&](std::int64_t i) {
              return test::contribution(dtype, reduce.kind, rank, i);
            });
          }
          const std::vector<Array> before = arrays;
          std::vector<Array*> outs = pointers(arrays);
          if (place < 4) outs = {&arrays[place]};
          run(isa, outs, pointers(arrays), combine_of(reduce, 4));
          for (std::size_t i = 0; i < 4; ++i) {
            if (place < 4 && i != place) {
              ASSERT_EQ(arrays[i], before[i]);
            } else {
              ASSERT_TRUE(test::holds(arrays[i].view(), [&](std::int64_t at) {
                return test::reduced(dtype, reduce, 4, at);
              }));
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, NanMakesMinimumAndMaximumNan) {
  for (const Isa isa : available()) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      test::dispatch(dtype, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (!std::is_integral_v<T>) {
          const double nan = std::numeric_limits<double>::quiet_NaN();
          const double inf = std::numeric_limits<double>::infinity();
          const auto list = [](const std::vector<double>& values) {
            std::vector<T> result;
            for (const double value : values) result.push_back(element<T>(value));
            return result;
          };
          const std::vector<std::vector<T>> inputs{list({nan, 1, 1, inf, -inf, 2}),
                                                   list({1, nan, 1, 3, 3, -2}),
                                                   list({2, 2, nan, 5, 5, -5})};
          const auto low = reduce_values<T>(isa, inputs, {.kind = ReduceKind::min});
          const auto high = reduce_values<T>(isa, inputs, {.kind = ReduceKind::max});
          for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(std::isnan(number(low[i]))) << name_of(isa) << " " << i;
            EXPECT_TRUE(std::isnan(number(high[i]))) << name_of(isa) << " " << i;
          }
          EXPECT_EQ(number(low[3]), 3);
          EXPECT_EQ(number(high[3]), inf);
          EXPECT_EQ(number(low[4]), -inf);
          EXPECT_EQ(number(high[4]), 5);
          EXPECT_EQ(number(low[5]), -5);
          EXPECT_EQ(number(high[5]), 2);
        }
      });
    }
  }
}

TEST(Kernels, SixteenBitSumsAreRoundedOnce) {
  const auto half = [](float value) { return std::vector<Half>{to_half(value)}; };
  const auto bfloat = [](float value) { return std::vector<BFloat16>{to_bfloat16(value)}; };
  for (const Isa isa : available()) {
    // In steps, each 1 would be lost against 2048 (f16) and 256 (bf16).
    EXPECT_EQ(reduce_values<Half>(isa, {half(2048), half(1), half(1)}, {}), half(2050));
    EXPECT_EQ(reduce_values<BFloat16>(isa, {bfloat(256), bfloat(1), bfloat(1)}, {}), bfloat(258));
    // A sum beyond the range of f16, whose average is within.
    EXPECT_EQ(reduce_values<Half>(isa, {half(65504), half(65504)}, {.divisor = 2}), half(65504));
    EXPECT_EQ(reduce_values<Half>(isa, {half(65504), half(65504)}, {}), half(INFINITY));
  }
}

/** Kernels make all NaNs the same one. */
float without_payload(float value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

TEST(Kernels, EveryHalfTimesManyFactorsIsConvertedAsByDType) {
  std::vector<Half> halves(0x10000);
  std::vector<BFloat16> bfloats(0x10000);
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    halves[bits].bits = bfloats[bits].bits = static_cast<std::uint16_t>(bits);
  }
  for (const Isa isa : available()) {
    // The factors reach ties, subnormals of f16 and of float, and overflow.
    for (const float factor : {1.0F, -1.0F, 1.0009765625F, 0.3333F, 0x1.FFEp-1F, 0x1.004p-14F,
                               0x1p-24F, 0x1.8p-20F, 3.0F, 0x1.554p15F, 0x1p-110F, 0x1p100F}) {
      const Combine combine{.factor = static_cast<double>(factor)};
      const auto half_results = reduce_values<Half>(isa, {halves}, combine);
      const auto bfloat_results = reduce_values<BFloat16>(isa, {bfloats}, combine);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        ASSERT_EQ(half_results[i], to_half(without_payload(to_float(halves[i]) * factor)))
            << name_of(isa) << " " << i << " " << factor;
        ASSERT_EQ(bfloat_results[i], to_bfloat16(without_payload(to_float(bfloats[i]) * factor)))
            << name_of(isa) << " " << i << " " << factor;
      }
    }
  }
}

TEST(Kernels, FloatsOfEveryExponentAreConvertedAsByDType) {
  const std::vector<std::vector<Half>> half_one{{to_half(1.0F)}};
  const std::vector<std::vector<BFloat16>> bfloat_one{{to_bfloat16(1.0F)}};
  for (const Isa isa : available()) {
    for (std::uint32_t upper = 0; upper < 0x10000U; upper += 3) {
      for (const std::uint32_t lower : {0U, 1U, 0x1000U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
        const float value = std::bit_cast<float>((upper << 16U) | lower);
        const Combine combine{.factor = static_cast<double>(value)};
        const float expected = without_payload(value);
        ASSERT_EQ(reduce_values<Half>(isa, half_one, combine)[0], to_half(expected)) << value;
        ASSERT_EQ(reduce_values<BFloat16>(isa, bfloat_one, combine)[0], to_bfloat16(expected))
            << value;
      }
    }
  }
}

TEST(Kernels, EveryInstructionSetGivesTheSameBits) {
  constexpr std::int64_t kCount = 1237;
  std::mt19937_64 random(7);
  for (const DType dtype : kDTypes) {
    for (const Reduce& reduce : test::reductions(dtype)) {
      const ReduceKind kind = combine_of(reduce, 1).kind;
      for (const int inputs : {1, 2, 5}) {
        SCOPED_TRACE(context(Isa::portable, dtype, kind, kCount, inputs));
        // Any bits: subnormals, infinities and NaNs among them.
        std::vector<Array> ins(static_cast<std::size_t>(inputs), Array(kCount, dtype));
        for (Array& in : ins) {
          auto* bytes = static_cast<std::byte*>(in.view().data);
          for (std::int64_t i = 0; i < in.view().bytes(); ++i) bytes[i] = std::byte(random());
        }
        std::vector<Combine> combines{{kind, 1.0, 1}};
        if (kind == ReduceKind::sum) combines.push_back({kind, -3.0, 7});
        for (const Combine& combine : combines) {
          Array expected(kCount, dtype);
          run(Isa::portable, {&expected}, pointers(ins), combine);
          for (const Isa isa : available()) {
            Array result(kCount, dtype);
            run(isa, {&result}, pointers(ins), combine);
            EXPECT_EQ(result, expected) << name_of(isa);
          }
        }
      }
    }
  }
}

TEST(Kernels, TheInstructionSetIsChosenByNameOrTheBest) {
  EXPECT_EQ(choose_isa(nullptr), available().back());
  EXPECT_EQ(choose_isa("portable"), Isa::portable);
  for (const Isa isa : kIsas) {
    if (find_table(isa) != nullptr) {
      EXPECT_EQ(choose_isa(name_of(isa)), isa);
    } else {
      EXPECT_THROW(choose_isa(name_of(isa)), InvalidArgument);
      EXPECT_THROW(table(isa), InvalidArgument);
    }
  }
  for (const char* wrong : {"sse9", "AVX2", "avx", " "}) {
    try {
      choose_isa(wrong);
      ADD_FAILURE() << wrong << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + wrong + "'"), std::string::npos);
    }
  }
}

/** In a process of its own, since one reads the variable once. */
[[noreturn]] void say_active() {
  std::fprintf(stderr, "[%s]", name_of(active_isa()));
  std::_Exit(0);
}

TEST(Kernels, TheEnvironmentNamesAWeakerInstructionSet) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // that begins anew
  for (const Isa isa : available()) {
    ::setenv("TUTTI_ISA", name_of(isa), 1);
    EXPECT_EXIT(say_active(), ::testing::ExitedWithCode(0),
                "\\[" + std::string(name_of(isa)) + "\\]");
  }
  ::unsetenv("TUTTI_ISA");
  ::testing::GTEST_FLAG(death_test_style) = "fast";
}

TEST(Kernels, ThePublicFunctionsRunTheActiveInstructionSet) {
  std::vector<float> a{1, 2, 3};
  std::vector<float> b{10, 20, 30};
  void* out = a.data();
  const std::array<const void*, 2> ins{a.data(), b.data()};
  reduce(std::span(&out, 1), ins, 3, DType::f32, {.divisor = 2});
  EXPECT_EQ(a, (std::vector<float>{5.5F, 11.0F, 16.5F}));
  EXPECT_NE(find_table(active_isa()), nullptr);
}

}  // namespace
}  // namespace tutti::cpu
