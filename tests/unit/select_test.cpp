// Selection against a full sort, and the marks of every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/cut.hpp"
#include "device/cpu/kernel_table.hpp"
#include "support/floats.hpp"
#include "tutti/error.hpp"
#include "tutti/select.hpp"

namespace tutti {
namespace {

using Floats = std::vector<float>;

/** Equal as bits, so that NaNs compare too. */
::testing::AssertionResult same(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " and not " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) {
      continue;
    }
    return ::testing::AssertionFailure()
           << "element " << i << " is " << actual[i] << " instead of " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

bool finite(float value) { return std::isfinite(value); }

/** The indices of a full sort: by magnitude, then by index; all that are not finite. */
std::vector<std::uint32_t> best(const Floats& values, std::int64_t k) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto size = [&](std::uint32_t i) { return finite(values[i]) ? std::abs(values[i]) : kInf; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return size(a) > size(b); });
  const std::int64_t wild =
      std::ssize(values) - std::count_if(values.begin(), values.end(), finite);
  order.resize(static_cast<std::size_t>(std::max(k, wild)));
  std::sort(order.begin(), order.end());
  return order;
}

/** `selected` holds the elements `indices` of `values`, and the residual what is left. */
void expect_selected(const SparseView& selected, const std::vector<std::uint32_t>& indices,
                     const Floats& values, const Floats* residual) {
  const std::span got(selected.indices, static_cast<std::size_t>(selected.count));
  ASSERT_TRUE(std::equal(got.begin(), got.end(), indices.begin(), indices.end()))
      << selected.count << " selected, " << indices.size() << " expected";
  Floats taken;
  Floats left = values;
  for (const std::uint32_t i : indices) {
    taken.push_back(values[i]);
    left[i] = 0.0F;
  }
  EXPECT_TRUE(same({selected.values, taken.size()}, taken));
  if (residual != nullptr) {
    EXPECT_TRUE(same(*residual, left));
  }
}

struct Input {
  const char* name;
  std::function<float(std::mt19937&, std::size_t)> make;
};

std::vector<Input> inputs() {
  const auto normal = [](std::mt19937& random) {
    return std::normal_distribution<float>()(random);
  };
  return {
      {"Normal", [=](auto& random, auto) { return normal(random); }},
      {"HeavyTailed", [=](auto& random, auto) { return std::pow(normal(random), 9.0F); }},
      {"Constant", [](auto&, auto) { return -0.25F; }},
      {"Zero", [](auto&, auto i) { return i % 2 == 0 ? 0.0F : -0.0F; }},
      {"MostlyZero", [=](auto& random, auto i) { return i % 997 == 0 ? normal(random) : 0.0F; }},
      {"Denormal", [=](auto& random, auto) { return normal(random) * 1e-40F; }},
      {"FewValues", [](auto& random, auto) { return static_cast<float>(random() % 5U) - 2.0F; }},
      {"Ascending", [](auto&, auto i) { return static_cast<float>(i + 1); }},
      {"Descending", [](auto&, auto i) { return -1.0F / static_cast<float>(i + 1); }},
      {"WithNan", [=](auto& random, auto i) { return i % 1000 == 7 ? kNan : normal(random); }},
      {"WithInfinity", [=](auto& random, auto i) { return i % 100 == 7 ? -kInf : normal(random); }},
      {"AllNan", [](auto&, auto) { return kNan; }},
  };
}

class Select : public ::testing::TestWithParam<Input> {
 protected:
  static Floats values(std::int64_t count) {
    std::mt19937 random(static_cast<unsigned>(count) + 1);
    Floats result;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      result.push_back(GetParam().make(random, i));
    }
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(Inputs, Select, ::testing::ValuesIn(inputs()),
                         [](const auto& test) { return std::string(test.param.name); });

/** Around the lengths of vectors, words of marks and blocks; and enough to sample, and to have more
 * candidates than are collected at once. */
constexpr std::int64_t kCounts[] = {0, 1, 2, 15, 16, 63, 64, 65, 1000, 4095, 4096, 4097, 300'001};

TEST_P(Select, TopKIsTheHeadOfAFullSort) {
  Selector selector;
  for (const std::int64_t count : kCounts) {
    const Floats gradient = values(count);
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, count / 1000, count / 100,
                                 count / 3, count - 1, count}) {
      if (k < 0 || k > count) continue;
      SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(count));
      const SparseView selected = selector.top_k(std::span(gradient), k);
      expect_selected(selected, best(gradient, k), gradient, nullptr);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Select, TopKWithAResidualSelectsFromTheSumAndKeepsTheRest) {
  Selector selector;
  for (const std::int64_t count : kCounts) {
    const Floats gradient = values(count);
    std::mt19937 random(5);
    Floats residual(gradient.size());
    for (float& value : residual) value = static_cast<float>(random() % 17U) - 8.0F;
    for (int step = 0; step < 3; ++step) {
      Floats sum = gradient;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = residual[i] + gradient[i];
      for (float& value : sum) value = value == value ? value : kNan;
      const std::int64_t k = (count + 99) / 100;
      SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(count));
      const SparseView selected = selector.top_k(std::span(gradient), k, std::span(residual));
      expect_selected(selected, best(sum, k), sum, &residual);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Select, AboveTakesWhatReachesTheThreshold) {
  Selector selector;
  for (const std::int64_t count : kCounts) {
    const Floats gradient = values(count);
    for (const float threshold : {0.0F, -0.0F, 1e-40F, 0.25F, 2.0F, 1e30F, kInf}) {
      SCOPED_TRACE("at least " + std::to_string(threshold) + " of " + std::to_string(count));
      std::vector<std::uint32_t> expected;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        if (!(std::abs(gradient[i]) < threshold)) expected.push_back(static_cast<std::uint32_t>(i));
      }
      Floats residual(gradient.size(), -0.0F);  // the sum is the gradient, to the bit
      expect_selected(selector.above(std::span(gradient), threshold), expected, gradient, nullptr);
      expect_selected(selector.above(std::span(gradient), threshold, std::span(residual)), expected,
                      gradient, &residual);
      if (HasFailure()) return;
    }
  }
}

TEST(Selector, RecoversFromASampleThatMisleads) {
  // All that is large lies where the sample looks, or where it does not: either way the bound from
  // it is wrong. So the test samples as select.cpp does.
  constexpr std::int64_t kCount = 1 << 20;
  constexpr std::uint64_t kStretch = 64;
  for (const bool seen : {true, false}) {
    Floats gradient(kCount, seen ? 0.5F : 2.0F);
    std::uint64_t state = 1;
    for (std::uint64_t begin = 0; begin < kCount; begin += kStretch) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      gradient[begin + ((state >> 32U) * kStretch >> 32U)] = seen ? 2.0F : 0.5F;
    }
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] += static_cast<float>(i % 1024) / 1024.0F;
    }
    Selector selector;
    Floats residual(gradient.size(), 0.0F);
    const std::int64_t k = kCount / 10;
    const SparseView selected = selector.top_k(std::span(gradient), k, std::span(residual));
    expect_selected(selected, best(gradient, k), gradient, &residual);
  }
}

TEST(Selector, FivePercentOfANormalGradientHoldAQuarterOfItsEnergy) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 1e-3F);  // below 1, where SINGA saw only ties
  Floats gradient(1 << 20);
  for (float& value : gradient) value = normal(random);
  Selector selector;
  const SparseView selected =
      selector.top_k(std::span(std::as_const(gradient)), std::ssize(gradient) / 20);
  const auto energy = [](double sum, float value) { return sum + double{value} * double{value}; };
  const double kept =
      std::accumulate(selected.values, selected.values + selected.count, 0.0, energy);
  const double whole = std::accumulate(gradient.begin(), gradient.end(), 0.0, energy);
  EXPECT_NEAR(kept / whole, 0.278, 0.001);
}

TEST(Selector, AResidualOfMemoryThatWasNaNIsCleared) {
  Selector selector;
  Floats residual{kNan, 1.0F, kInf, 2.0F};
  const Floats gradient{1.0F, 1.0F, -kInf, 1.0F};
  const SparseView selected = selector.top_k(std::span(gradient), 1, std::span(residual));
  expect_selected(selected, {0, 2}, {kNan, 2.0F, kNan, 3.0F}, &residual);
}

template <class Call>
void expect_refusal(const Call& call, const std::string& wanted) {
  try {
    call();
    ADD_FAILURE() << "did not throw: " << wanted;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
  }
}

TEST(Selector, RefusesWhatItCannotDo) {
  Selector selector;
  Floats gradient(10, 1.0F);
  Floats residual(10, 2.0F);
  std::vector<double> doubles(10);
  const View view(std::span{gradient});
  const View left(std::span{residual});
  expect_refusal([&] { selector.top_k(view, -1, left); }, "k is -1");
  expect_refusal([&] { selector.top_k(view, 11, left); }, "k is 11");
  expect_refusal([&] { selector.top_k(View(std::span(doubles)), 1); }, "gradient.dtype is f64");
  expect_refusal([&] { selector.top_k(view, 1, View(std::span(doubles))); }, "residual.dtype");
  expect_refusal([&] { selector.top_k(view, 1, left.part(0, 9)); }, "residual.count is 9");
  expect_refusal([&] { selector.top_k(view, 1, view); }, "overlap");
  expect_refusal([&] { selector.top_k(view.part(0, 8), 1, view.part(1, 8)); }, "overlap");
  expect_refusal([&] { selector.above(view, -0.5F, left); }, "threshold is -0.5");
  expect_refusal([&] { selector.above(view, kNan, left); }, "threshold is nan");
  expect_refusal(
      [&] {
        selector.above({gradient.data(), kMostSparse + 1, DType::f32}, 1.0F);
      },
      "gradient.count");
  EXPECT_EQ(gradient, Floats(10, 1.0F));
  EXPECT_EQ(residual, Floats(10, 2.0F));
}

TEST(Cut, CountsWhatIsAboveWhateverTheGuess) {
  std::mt19937 random(3);
  Floats values(5000);
  for (float& value : values) value = std::ldexp(static_cast<float>(random() % 100U), -50);
  std::vector<std::uint32_t> magnitudes;
  for (const float value : values) magnitudes.push_back(cpu::magnitude_of(value));
  std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
  const auto middle = magnitudes[2500];
  for (const std::int64_t rank : {0, 1, 100, 2500, 4999}) {
    for (const auto& [low, high] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
             {0, cpu::kNotFinite}, {middle, middle}, {middle, middle + 5}, {0, 0}, {1, middle}}) {
      const cpu::Cut cut = cpu::find_cut(values, rank, low, high);
      EXPECT_EQ(cut.magnitude, magnitudes[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(cut.above, std::count_if(magnitudes.begin(), magnitudes.end(),
                                         [&](std::uint32_t m) { return m > cut.magnitude; }));
    }
  }
}

TEST(Mark, IsTheSameInEveryInstructionSet) {
  std::mt19937 random(7);
  for (std::int64_t count = 0; count <= 200; ++count) {
    const auto size = static_cast<std::size_t>(count);
    Floats gradient(size + 1);  // off the alignment of a vector
    Floats before(size + 2, 77.0F);
    for (std::size_t i = 0; i <= size; ++i) {
      gradient[i] = std::ldexp(static_cast<float>(random() % 9U) - 4.0F, -static_cast<int>(i % 3));
      before[i] = static_cast<float>(random() % 9U) - 4.0F;
    }
    gradient[size / 2] = kNan;
    for (const float least : {0.0F, 1.0F, 3.0F, kInf}) {
      for (const cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512}) {
        const cpu::KernelTable* table = cpu::find_table(isa);
        if (table == nullptr) continue;
        for (int source = 0; source < 3; ++source) {
          SCOPED_TRACE(std::string(cpu::name_of(isa)) + ", count " + std::to_string(count) +
                       ", source " + std::to_string(source));
          Floats after = before;
          std::vector<std::uint64_t> marks((size + 63) / 64 + 1, 0x5A5A5A5A5A5A5A5A);
          table->mark(source == 1 ? nullptr : gradient.data() + 1,
                      source == 0 ? nullptr : after.data() + 1, count,
                      std::bit_cast<std::uint32_t>(least), marks.data());
          for (std::size_t i = 0; i < size; ++i) {
            float value = before[i + 1];
            if (source == 0) value = gradient[i + 1];
            if (source == 2) value += gradient[i + 1];
            ASSERT_EQ((marks[i / 64] >> (i % 64) & 1U) != 0, !(std::abs(value) < least)) << i;
            const float left = source == 2 ? value : before[i + 1];
            ASSERT_TRUE(after[i + 1] == left || (left != left && after[i + 1] != after[i + 1]));
          }
          if (size % 64 != 0) {
            ASSERT_EQ(marks[size / 64] >> (size % 64), 0U);
          }
          ASSERT_EQ(marks.back(), 0x5A5A5A5A5A5A5A5A);
          ASSERT_EQ(after.back(), 77.0F);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti
