// Update rules: bit for bit their formulas at awkward sizes, and PyTorch's values.
#include "ps/table/rules.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::ps {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-2.0F, 2.0F);
  Floats result(static_cast<std::size_t>(count));
  for (float& value : result) value = values(random);
  return result;
}

/** The formulas of tutti/ps/table.hpp, one element after the other. */
struct Reference {
  Floats& w;
  Floats& state;
  const Floats& gradient;
  float scale;

  void operator()(const Sgd& rule) const {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = w[i] - rule.lr * (scale * gradient[i]);
  }
  void operator()(const Momentum& rule) const {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float g = scale * gradient[i];
      state[i] = rule.momentum * state[i] + g;
      w[i] = w[i] - rule.lr * (rule.nesterov ? g + rule.momentum * state[i] : state[i]);
    }
  }
  void operator()(const Adagrad& rule) const {
    if (rule.row_wise) {
      Floats sums(8);
      for (std::size_t i = 0; i < w.size(); ++i) {
        const float g = scale * gradient[i];
        sums[i % 8] = sums[i % 8] + g * g;
      }
      float sum = 0.0F;
      for (const float part : sums) sum = sum + part;
      state[0] = state[0] + sum / static_cast<float>(w.size());
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float g = scale * gradient[i];
      if (!rule.row_wise) state[i] = state[i] + g * g;
      w[i] = w[i] - rule.lr * g / (std::sqrt(state[rule.row_wise ? 0 : i]) + rule.eps);
    }
  }
  void operator()(const Adam& rule) const {
    const std::size_t n = w.size();
    state[2 * n] += 1.0F;
    double power1 = 1.0;
    double power2 = 1.0;
    for (float t = 0.0F; t < state[2 * n]; t += 1.0F) {
      power1 *= static_cast<double>(rule.beta1);
      power2 *= static_cast<double>(rule.beta2);
    }
    const auto rate = static_cast<float>(static_cast<double>(rule.lr) / (1.0 - power1));
    const auto root = static_cast<float>(std::sqrt(1.0 - power2));
    for (std::size_t i = 0; i < n; ++i) {
      const float g = scale * gradient[i];
      state[i] = rule.beta1 * state[i] + (1.0F - rule.beta1) * g;
      state[n + i] = rule.beta2 * state[n + i] + (1.0F - rule.beta2) * g * g;
      w[i] = w[i] - rate * state[i] / (std::sqrt(state[n + i]) / root + rule.eps);
    }
  }
};

std::vector<Rule> rules() {
  return {Sgd{0.1F},
          Momentum{0.1F, 0.9F, false},
          Momentum{0.1F, 0.9F, true},
          Adagrad{0.1F, 1e-10F, 0.0F, false},
          Adagrad{0.1F, 1e-10F, 0.5F, true},
          Adam{0.1F, 0.9F, 0.999F, 1e-8F}};
}

TEST(RuleKernel, FollowsTheFormulasBitForBitAtAnySize) {
  for (const Rule& rule : rules()) {
    const RuleKernel kernel(rule);
    for (const std::int64_t count : {1, 3, 7, 8, 15, 16, 17, 64, 1000}) {
      Floats weights = random_floats(count, 1);
      Floats state(static_cast<std::size_t>(state_floats(rule, count)));
      kernel.start(state.data(), count);
      Floats expected = weights;
      Floats expected_state = state;
      for (std::uint32_t push = 0; push < 20; ++push) {
        const Floats gradient = random_floats(count, 2 + push);
        const float scale = push % 2 == 0 ? 1.0F : 1.0F / 3.0F;
        kernel.apply(weights.data(), state.data(), gradient.data(), count, scale);
        std::visit(Reference{expected, expected_state, gradient, scale}, rule);
      }
      ASSERT_EQ(weights, expected) << "rule " << rule.index() << ", " << count;
      ASSERT_EQ(state, expected_state) << "rule " << rule.index() << ", " << count;
    }
  }
}

TEST(RuleKernel, SeveralGradientsCountAsTheirSumInOrder) {
  for (const Rule& rule : rules()) {
    const auto* adagrad = std::get_if<Adagrad>(&rule);
    if (adagrad != nullptr && adagrad->row_wise) continue;
    const RuleKernel kernel(rule);
    for (const std::int64_t count : {1, 2047, 2048, 2049, 5000}) {
      Floats weights = random_floats(count, 1);
      Floats state(static_cast<std::size_t>(state_floats(rule, count)));
      kernel.start(state.data(), count);
      Floats expected = weights;
      Floats expected_state = state;
      for (std::uint32_t terms = 1; terms <= 4; ++terms) {
        std::vector<Floats> gradients;
        std::vector<const float*> pointers;
        Floats sum;
        for (std::uint32_t term = 0; term < terms; ++term) {
          gradients.push_back(random_floats(count, 10 * terms + term));
          if (sum.empty()) sum.resize(gradients.back().size(), -0.0F);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients.back()[i];
        }
        for (const Floats& gradient : gradients) pointers.push_back(gradient.data());
        kernel.apply(weights.data(), state.data(), pointers, count, 0.25F);
        kernel.apply(expected.data(), expected_state.data(), sum.data(), count, 0.25F);
      }
      ASSERT_EQ(weights, expected) << "rule " << rule.index() << ", " << count;
      ASSERT_EQ(state, expected_state) << "rule " << rule.index() << ", " << count;
    }
  }
}

TEST(RuleKernel, GivesPyTorchsValues) {
  const std::vector<Floats> gradients{
      {0.1F, -0.2F, 0.0F}, {-0.3F, 4.0F, 1e-3F}, {0.25F, 0.5F, -7.0F}};
  const std::vector<std::pair<Rule, Floats>> cases{
      {Sgd{0.1F}, {0.495000035F, -1.67999995F, 3.69990015F}},
      {Momentum{0.1F, 0.9F, false}, {0.504900038F, -2.00580001F, 3.69981003F}},
      {Momentum{0.1F, 0.9F, true}, {0.499410003F, -2.36021996F, 4.32972908F}},
      {Adagrad{0.1F, 1e-10F, 0.0F, false}, {0.432850957F, -1.26226342F, 3.0F}},
      {Adagrad{0.1F, 1e-10F, 0.5F, false}, {0.494012296F, -1.33333993F, 3.09935236F}},
      {Adam{0.1F, 0.9F, 0.999F, 1e-8F}, {0.439749032F, -1.28333616F, 2.98946047F}}};
  for (const auto& [rule, expected] : cases) {
    const RuleKernel kernel(rule);
    Floats weights{0.5F, -1.25F, 3.0F};
    Floats state(static_cast<std::size_t>(state_floats(rule, 3)));
    kernel.start(state.data(), 3);
    for (const Floats& gradient : gradients) {
      kernel.apply(weights.data(), state.data(), gradient.data(), 3, 1.0F);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(weights[i], expected[i], 1e-6F) << "rule " << rule.index() << ", element " << i;
    }
  }
}

TEST(RuleKernel, CorrectsAnOldRowOfAdamAsAYoungOne) {
  // beta2 so near 1 that its powers have not vanished where the prepared corrections end.
  const Adam rule{0.1F, 0.9F, 0.9999999F, 1e-8F};
  const RuleKernel kernel(rule);
  for (const double steps : {65'536.0, 65'537.0, 1e6, 16'777'216.0}) {
    Floats weights{1.0F};
    Floats state{0.5F, 0.25F, static_cast<float>(steps - 1)};
    const Floats gradient{0.5F};
    kernel.apply(weights.data(), state.data(), gradient.data(), 1, 1.0F);
    const double m = 0.5;
    const double v = 0.25;
    const double correction = 1.0 - std::pow(static_cast<double>(rule.beta2), steps);
    EXPECT_NEAR(weights[0], 1.0 - 0.1 * m / std::sqrt(v / correction), 1e-6) << steps;
    EXPECT_EQ(state[2], static_cast<float>(steps));
  }
}

TEST(RuleKernel, ZeroGradientsOfAFreshRowChangeNothing) {
  for (const Rule& rule : rules()) {
    const RuleKernel kernel(rule);
    Floats weights{1.0F, -2.0F};
    Floats state(static_cast<std::size_t>(state_floats(rule, 2)));
    kernel.start(state.data(), 2);
    const Floats zeros(2);
    kernel.apply(weights.data(), state.data(), zeros.data(), 2, 1.0F);
    EXPECT_EQ(weights, (Floats{1.0F, -2.0F})) << "rule " << rule.index();
  }
}

TEST(RuleKernel, AddsDeltasWithoutARule) {
  Floats weights{1.0F, 2.0F, 3.0F};
  const Floats deltas{4.0F, -8.0F, 0.5F};
  add_scaled(weights.data(), deltas.data(), 3, 0.25F);
  EXPECT_EQ(weights, (Floats{2.0F, 0.0F, 3.125F}));
}

}  // namespace
}  // namespace tutti::ps
