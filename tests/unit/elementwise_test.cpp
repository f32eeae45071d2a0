// The formulas that GPUs share, beside the CPU's vector kernels: the same bits.
#include "device/elementwise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {
namespace {

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto h = static_cast<std::uint32_t>(i * 2654435761U + seed * std::size_t{97});
    values[i] = std::ldexp(static_cast<float>(h >> 8U) / 16777216.0F - 0.5F,
                           static_cast<int>(h % 40U) - 20);
  }
  return values;
}

TEST(Elementwise, ClipAndScaleIsWhatNarrowRounds) {
  std::vector<float> values = numbers(10007, 1);
  values[3] = std::numeric_limits<float>::infinity();
  values[4] = -std::numeric_limits<float>::infinity();
  for (const float limit : {0.0F, 100.0F}) {
    const Narrowing narrowing{.scale = 0.3F, .limit = limit};
    std::vector<Half> expected(values.size());
    cpu::narrow(values.data(), expected.data(), static_cast<std::int64_t>(values.size()),
                DType::f16, narrowing);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(to_half(clip_and_scale(values[i], narrowing)), expected[i]) << values[i];
    }
  }
  EXPECT_TRUE(std::isnan(clip_and_scale(std::nanf(""), {.scale = 1.0F, .limit = 1.0F})));
}

TEST(Elementwise, SgdStepIsThatOfTheKernel) {
  const SgdStep steps[]{
      {.lr = 0.1F, .gradient_scale = 0.3F},
      {.lr = 0.1F, .weight_decay = 0.01F},
      {.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F},
      {.lr = 0.1F, .momentum = 0.9F, .nesterov = true},
      {.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F},
      {.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F, .first = true},
  };
  for (const SgdStep& step : steps) {
    std::vector<float> parameter = numbers(10007, 2);
    const std::vector<float> gradient = numbers(10007, 3);
    std::vector<float> velocity = numbers(10007, 4);
    const bool keeps = step.momentum != 0.0F;
    const std::vector<float> parameter_before = parameter;
    const std::vector<float> velocity_before = velocity;
    cpu::sgd_update(parameter.data(), gradient.data(), keeps ? velocity.data() : nullptr, 10007,
                    step);
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      const SgdElement next =
          sgd_step({parameter_before[i], velocity_before[i]}, gradient[i], keeps, step);
      ASSERT_EQ(next.parameter, parameter[i]) << i;
      if (keeps) {
        ASSERT_EQ(next.velocity, velocity[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
