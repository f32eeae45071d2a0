// Adam's and Adagrad's kernels: each instruction set beside the portable one, bit for bit, and
// beside the papers' formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/cpu/kernel_table.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<float>;

constexpr float kGuard = 42.0F;
constexpr int kIsas = 3;
constexpr cpu::Isa kIsaList[kIsas]{cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512};

/** Every size around those at which a vector, a strip of vectors or a pass of an instruction set
 * ends. */
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{0, 1, 1111};
  for (const std::size_t n : {4U, 8U, 16U, 32U, 64U, 128U}) {
    for (const std::size_t size : {n - 1, n, n + 1}) all.push_back(size);
  }
  return all;
}

/** Arrays one element off the alignment, with an element on either side that must stay. */
struct Arrays {
  Arrays(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Numbers* array : {&parameter, &gradient, &first, &second}) {
      array->push_back(kGuard);
      for (std::size_t i = 0; i < count; ++i) array->push_back(normal(random));
      array->push_back(kGuard);
    }
    for (float& value : second) value = value * value;  // as means and sums of squares are
    second.front() = second.back() = kGuard;
  }

  std::int64_t count() const { return static_cast<std::int64_t>(parameter.size()) - 2; }
  AdamPiece adam() {
    return {parameter.data() + 1, gradient.data() + 1, first.data() + 1, second.data() + 1,
            count()};
  }
  AdagradPiece adagrad() {
    return {parameter.data() + 1, gradient.data() + 1, second.data() + 1, count()};
  }

  Numbers parameter;
  Numbers gradient;
  Numbers first;
  Numbers second;
};

void expect_equal(const Arrays& arrays, const Arrays& expected, const std::string& what) {
  ASSERT_EQ(arrays.parameter, expected.parameter) << what;
  ASSERT_EQ(arrays.gradient, expected.gradient) << what;
  ASSERT_EQ(arrays.first, expected.first) << what;
  ASSERT_EQ(arrays.second, expected.second) << what;
}

std::vector<AdamStep> adam_steps() {
  std::vector<AdamStep> steps;
  for (const int t : {1, 2, 1000}) {
    const AdamStep plain{.correction = adam_correction(0.01F, std::pow(0.9, t), std::pow(0.999, t)),
                         .beta1 = 0.9F,
                         .beta2 = 0.999F,
                         .eps = 1e-8F};
    AdamStep decayed = plain;
    decayed.weight_decay = 0.01F;
    AdamStep decoupled = plain;
    decoupled.keep = 0.999F;
    decoupled.gradient_scale = 0.3F;
    for (const AdamStep& step : {plain, decayed, decoupled}) steps.push_back(step);
  }
  return steps;
}

TEST(AdamKernel, EveryInstructionSetGivesTheBitsOfThePortableOne) {
  for (const AdamStep& step : adam_steps()) {
    for (const std::size_t count : sizes()) {
      const Arrays before(count, 5);
      Arrays expected = before;
      cpu::table(cpu::Isa::portable).adam_update(expected.adam(), step);
      EXPECT_EQ(expected.parameter.back(), kGuard) << count;
      EXPECT_EQ(expected.first.back(), kGuard) << count;
      EXPECT_EQ(expected.second.back(), kGuard) << count;
      for (const cpu::Isa isa : kIsaList) {
        const cpu::KernelTable* table = cpu::find_table(isa);
        if (table == nullptr) continue;
        Arrays arrays = before;
        table->adam_update(arrays.adam(), step);
        expect_equal(arrays, expected,
                     cpu::name_of(isa) + std::string(" ") + std::to_string(count));
      }
    }
  }
}

TEST(AdamKernel, FollowsTheFormulaInDouble) {
  for (const AdamStep& step : adam_steps()) {
    const Arrays before(1111, 6);
    Arrays after = before;
    cpu::adam_update(after.adam(), step);
    for (std::size_t i = 1; i <= 1111; ++i) {
      const double p = before.parameter[i];
      const double g = static_cast<double>(step.gradient_scale) * before.gradient[i] +
                       static_cast<double>(step.weight_decay) * p;
      const double beta1 = step.beta1;
      const double beta2 = step.beta2;
      const double m = beta1 * before.first[i] + (1.0 - beta1) * g;
      const double v = beta2 * before.second[i] + (1.0 - beta2) * g * g;
      const double moved = static_cast<double>(step.correction.rate) * m /
                           (std::sqrt(v) / static_cast<double>(step.correction.root) +
                            static_cast<double>(step.eps));
      ASSERT_NEAR(after.first[i], m, 1e-6) << i;
      ASSERT_NEAR(after.second[i], v, 1e-6 * (1.0 + v)) << i;
      ASSERT_NEAR(after.parameter[i], static_cast<double>(step.keep) * p - moved,
                  1e-6 * (1.0 + std::abs(p) + std::abs(moved)))
          << i;
    }
  }
}

TEST(AdagradKernel, EveryInstructionSetGivesTheBitsOfThePortableOne) {
  for (const float weight_decay : {0.0F, 0.01F}) {
    const AdagradStep step{
        .rate = 0.1F, .eps = 1e-10F, .weight_decay = weight_decay, .gradient_scale = 0.3F};
    for (const std::size_t count : sizes()) {
      const Arrays before(count, 7);
      Arrays expected = before;
      cpu::table(cpu::Isa::portable).adagrad_update(expected.adagrad(), step);
      EXPECT_EQ(expected.parameter.back(), kGuard) << count;
      EXPECT_EQ(expected.second.back(), kGuard) << count;
      for (const cpu::Isa isa : kIsaList) {
        const cpu::KernelTable* table = cpu::find_table(isa);
        if (table == nullptr) continue;
        Arrays arrays = before;
        table->adagrad_update(arrays.adagrad(), step);
        expect_equal(arrays, expected,
                     cpu::name_of(isa) + std::string(" ") + std::to_string(count));
      }
    }
  }
}

TEST(AdagradKernel, FollowsTheFormulaInDouble) {
  const AdagradStep step{.rate = 0.1F, .eps = 1e-3F, .weight_decay = 0.01F, .gradient_scale = 0.3F};
  const Arrays before(1111, 8);
  Arrays after = before;
  cpu::adagrad_update(after.adagrad(), step);
  for (std::size_t i = 1; i <= 1111; ++i) {
    const double p = before.parameter[i];
    const double g = static_cast<double>(step.gradient_scale) * before.gradient[i] +
                     static_cast<double>(step.weight_decay) * p;
    const double sum = before.second[i] + g * g;
    ASSERT_NEAR(after.second[i], sum, 1e-6 * (1.0 + sum)) << i;
    ASSERT_NEAR(
        after.parameter[i],
        p - static_cast<double>(step.rate) * g / (std::sqrt(sum) + static_cast<double>(step.eps)),
        1e-6 * (1.0 + std::abs(p)))
        << i;
  }
}

TEST(AdamKernel, TermsOfZeroWeightAreLeftOut) {
  const float infinity = HUGE_VALF;
  Numbers p{infinity};
  Numbers g{1.0F};
  Numbers m{0.0F};
  Numbers v{0.0F};
  cpu::adam_update({p.data(), g.data(), m.data(), v.data(), 1},
                   {.correction = {0.1F, 1.0F}, .beta1 = 0.5F, .beta2 = 0.5F});
  EXPECT_EQ(p[0], infinity);
  EXPECT_EQ(m[0], 0.5F);  // infinity * 0 would be NaN
  EXPECT_EQ(v[0], 0.5F);
}

}  // namespace
}  // namespace tutti
