// Adam, AdamW and Adagrad: against PyTorch, checks, learning rates and state.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const Numbers kStart{1.0F, -2.0F, 0.5F, 3.0F};
const std::vector<Numbers> kGradients{
    {0.5F, -1.0F, 0.25F, 2.0F}, {-0.5F, 0.75F, 1.5F, -0.25F}, {1.0F, 0.125F, -2.0F, 0.5F}};

void update(Optimizer& optimizer, Numbers& parameter, const Numbers& gradient, float scale = 1.0F) {
  const ParameterRange range{0, static_cast<std::int64_t>(parameter.size()), parameter.data(),
                             gradient.data(), scale};
  optimizer.update(std::span(&range, 1));
}

struct Case {
  std::shared_ptr<Optimizer> optimizer;
  Numbers expected;
};

/** With the numbers that PyTorch 2.15 computes of kStart and kGradients. */
std::vector<Case> cases() {
  const AdamOptions decaying{
      .lr = 0.1F, .beta1 = 0.5F, .beta2 = 0.75F, .eps = 1e-3F, .weight_decay = 0.01F};
  const AdamWOptions decoupled{.lr = 0.1F, .beta1 = 0.5F, .beta2 = 0.75F, .weight_decay = 0.5F};
  const AdagradOptions slowing{.lr = 0.1F,
                               .lr_decay = 0.5F,
                               .weight_decay = 0.01F,
                               .initial_accumulator_value = 0.25F,
                               .eps = 1e-3F};
  return {
      {std::make_shared<Adam>(AdamOptions{.lr = 0.1F}),
       {0.855438948F, -1.8905586F, 0.326967657F, 2.78439879F}},
      {std::make_shared<Adam>(decaying), {0.864971519F, -1.93587303F, 0.348705769F, 2.81104684F}},
      {std::make_shared<AdamW>(AdamWOptions{.lr = 0.1F}),
       {0.852636576F, -1.88477349F, 0.32575348F, 2.77566504F}},
      {std::make_shared<AdamW>(decoupled), {0.732814848F, -1.66450679F, 0.291740239F, 2.39832425F}},
      {std::make_shared<Adagrad>(AdagradOptions{.lr = 0.1F}),
       {0.889060974F, -1.96995044F, 0.380963594F, 2.88832641F}},
      {std::make_shared<Adagrad>(slowing),
       {0.928488016F, -1.95022476F, 0.431167901F, 2.89775467F}}};
}

TEST(AdaptiveOptimizers, GiveTheNumbersOfPyTorch) {
  for (const Case& c : cases()) {
    c.optimizer->resize(4);
    Numbers parameter = kStart;
    for (const Numbers& gradient : kGradients) {
      update(*c.optimizer, parameter, gradient);
      c.optimizer->step();
    }
    // PyTorch's betas are doubles, of which 1 - beta2 differs in the fifth digit.
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(parameter[i], c.expected[i], 1e-5F) << i;
  }
}

TEST(AdaptiveOptimizers, GradientsAreScaledFirst) {
  for (const Case& c : cases()) {
    c.optimizer->resize(4);
    Numbers expected = kStart;
    update(*c.optimizer, expected, {1.0F, 2.0F, 3.0F, -4.0F});
    c.optimizer->resize(4);  // starts afresh
    Numbers parameter = kStart;
    update(*c.optimizer, parameter, {2.0F, 4.0F, 6.0F, -8.0F}, 0.5F);
    EXPECT_EQ(parameter, expected);
  }
}

TEST(AdaptiveOptimizers, RangesOfOneUpdateAreSeparate) {
  for (const Case& c : cases()) {
    c.optimizer->resize(10);
    Numbers low{0.5F, 0.25F};
    Numbers high{1.0F, 1.0F, 1.0F};
    const Numbers gradient{1.0F, 2.0F, 3.0F};
    const std::vector<ParameterRange> ranges{{7, 3, high.data(), gradient.data()},
                                             {0, 2, low.data(), gradient.data(), 0.5F},
                                             {4, 0, nullptr, nullptr}};
    const OptimizerState before = c.optimizer->state();
    c.optimizer->update(ranges);
    EXPECT_NE(high[2], 1.0F);
    EXPECT_NE(low[1], 0.25F);
    for (const auto& [name, array] : c.optimizer->state().arrays) {
      for (std::size_t i = 0; i < 10; ++i) {
        EXPECT_EQ(array[i] != before.arrays.at(name)[i], i < 2 || i >= 7) << name << " " << i;
      }
    }
  }
}

/** An optimiser anew with the options of `number` of cases(). */
std::shared_ptr<Optimizer> make(std::size_t number) { return cases()[number].optimizer; }

TEST(AdaptiveOptimizers, AStateResumesToTheBit) {
  for (std::size_t number = 0; number < cases().size(); ++number) {
    const auto first = make(number);
    first->resize(4);
    Numbers parameter = kStart;
    update(*first, parameter, kGradients[0]);
    first->step();
    EXPECT_EQ(first->state().numbers.at("steps"), 1.0);

    const auto second = make(number);
    second->resize(4);
    second->load_state(first->state());
    Numbers copy = parameter;
    update(*first, parameter, kGradients[1]);
    update(*second, copy, kGradients[1]);
    EXPECT_EQ(copy, parameter);
    EXPECT_EQ(second->state().arrays, first->state().arrays);

    const auto without = make(number);
    without->resize(4);
    Numbers other = copy;
    update(*without, other, kGradients[2]);
    update(*second, copy, kGradients[2]);
    EXPECT_NE(other, copy);
  }
}

TEST(AdaptiveOptimizers, TheLearningRateTakesEffectWithTheNextUpdate) {
  Adam adam(AdamOptions{.lr = 1.0F, .eps = 0.0F});
  Adagrad adagrad(AdagradOptions{.lr = 1.0F, .eps = 0.0F});
  const auto check = [](auto& optimizer) {
    optimizer.resize(1);
    Numbers parameter{0.0F};
    optimizer.set_lr(0.25F);
    update(optimizer, parameter, {8.0F});
    EXPECT_NEAR(parameter[0], -0.25F, 1e-6F);  // the first step is as long as lr
    EXPECT_EQ(optimizer.options().lr, 0.25F);
  };
  check(adam);
  check(adagrad);
}

TEST(AdaptiveOptimizers, BetasTakeEffectWithTheNextUpdate) {
  Adam adam(AdamOptions{.lr = 1.0F, .beta1 = 0.5F, .beta2 = 0.5F, .eps = 0.0F});
  adam.resize(1);
  Numbers parameter{0.0F};
  update(adam, parameter, {1.0F});  // m and v are 0.5
  adam.step();
  adam.set_betas(0.0F, 0.75F);
  update(adam, parameter, {2.0F});  // m is 2, v 1.375, of which 1 - 0.75^2 is the correction
  EXPECT_NEAR(parameter[0], -1.0F - 2.0F / std::sqrt(1.375F / 0.4375F), 1e-6F);
  EXPECT_EQ(adam.options().beta1, 0.0F);
  EXPECT_EQ(adam.options().beta2, 0.75F);
}

TEST(AdaptiveOptimizers, TheStepsOfAdamAreCorrectedForTheirNumber) {
  Adam adam(AdamOptions{.lr = 0.5F, .eps = 0.0F});
  adam.resize(1);
  Numbers parameter{0.0F};
  for (int t = 1; t <= 20; ++t) {  // of equal gradients each step is as long as lr
    update(adam, parameter, {3.0F});
    adam.step();
    EXPECT_NEAR(parameter[0], -0.5F * static_cast<float>(t), 1e-4F) << t;
  }
}

/** Expects an InvalidArgument that has both texts. */
void expect_refused(const std::string& name, const std::string& value,
                    const std::function<void()>& action) {
  std::string message = "nothing was thrown";
  try {
    action();
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  EXPECT_NE(message.find(name), std::string::npos) << message;
  EXPECT_NE(message.find(value), std::string::npos) << message;
}

TEST(AdaptiveOptimizers, BadOptionsAreRefused) {
  const auto adam = [](const AdamOptions& options) { return [options] { Adam made(options); }; };
  expect_refused("AdamOptions::lr", "-0.5", adam({.lr = -0.5F}));
  expect_refused("AdamOptions::lr", "nan", adam({.lr = kNan}));
  expect_refused("AdamOptions::beta1", "1", adam({.beta1 = 1.0F}));
  expect_refused("AdamOptions::beta1", "nan", adam({.beta1 = kNan}));
  expect_refused("AdamOptions::beta2", "-0.25", adam({.beta2 = -0.25F}));
  expect_refused("AdamOptions::eps", "-1", adam({.eps = -1.0F}));
  expect_refused("AdamOptions::weight_decay", "inf", adam({.weight_decay = kInfinity}));
  expect_refused("AdamWOptions::weight_decay", "-1",
                 [] { AdamW made(AdamWOptions{.weight_decay = -1.0F}); });
  const auto adagrad = [](const AdagradOptions& options) {
    return [options] { Adagrad made(options); };
  };
  expect_refused("AdagradOptions::lr", "-0.5", adagrad({.lr = -0.5F}));
  expect_refused("AdagradOptions::lr_decay", "-1", adagrad({.lr_decay = -1.0F}));
  expect_refused("AdagradOptions::weight_decay", "nan", adagrad({.weight_decay = kNan}));
  expect_refused("AdagradOptions::initial_accumulator_value", "-0.125",
                 adagrad({.initial_accumulator_value = -0.125F}));
  expect_refused("AdagradOptions::eps", "inf", adagrad({.eps = kInfinity}));
  Adam good(AdamOptions{.lr = 0.5F});
  expect_refused("lr", "-1", [&] { good.set_lr(-1.0F); });
  EXPECT_EQ(good.options().lr, 0.5F);
  expect_refused("beta2", "1", [&] { good.set_betas(0.5F, 1.0F); });
  EXPECT_EQ(good.options().beta1, 0.9F);
}

TEST(AdaptiveOptimizers, BadRangesAreRefusedAndChangeNothing) {
  for (const Case& c : cases()) {
    expect_refused("elements", "-3", [&] { c.optimizer->resize(-3); });
    c.optimizer->resize(4);
    Numbers parameter = kStart;
    const Numbers& gradient = kGradients[0];
    for (const ParameterRange& bad : {ParameterRange{1, 4, parameter.data(), gradient.data()},
                                      ParameterRange{0, 1, nullptr, gradient.data()}}) {
      const std::vector<ParameterRange> ranges{{0, 4, parameter.data(), gradient.data()}, bad};
      expect_refused("ranges[1]", "is", [&] { c.optimizer->update(ranges); });
    }
    EXPECT_EQ(parameter, kStart);
  }
}

TEST(AdaptiveOptimizers, StatesOfOtherSpacesAndRulesAreRefusedAndChangeNothing) {
  for (std::size_t number : {0U, 4U}) {
    const auto optimizer = make(number);
    const std::string squares = number == 0 ? "exp_avg_sq" : "sum";
    optimizer->resize(4);
    Numbers parameter = kStart;
    update(*optimizer, parameter, kGradients[0]);
    const OptimizerState good = optimizer->state();
    const auto changed = [&](const std::function<void(OptimizerState&)>& change) {
      return [&optimizer, &good, change] {
        OptimizerState state = good;
        change(state);
        optimizer->load_state(state);
      };
    };
    expect_refused(squares, "5", changed([&](auto& s) { s.arrays[squares].resize(5); }));
    expect_refused(squares, "needs", changed([&](auto& s) { s.arrays.erase(squares); }));
    expect_refused(squares, "element 2", changed([&](auto& s) { s.arrays[squares][2] = -1.0F; }));
    expect_refused("momentum", "know", changed([](auto& s) { s.arrays["momentum"]; }));
    expect_refused("steps", "no number", changed([](auto& s) { s.numbers.clear(); }));
    expect_refused("steps", "0.5", changed([](auto& s) { s.numbers["steps"] = 0.5; }));
    EXPECT_EQ(optimizer->state().arrays, good.arrays);
    EXPECT_EQ(optimizer->state().numbers, good.numbers);
  }
}

}  // namespace
}  // namespace tutti
