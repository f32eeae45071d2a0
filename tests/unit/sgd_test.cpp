// SGD: its kernel against plain loops, the class against PyTorch, checks and state.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "support/floats.hpp"
#include "tutti/error.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {
namespace {

using Floats = std::vector<float>;

/** The formulas of optimizer.hpp, one element at a time. */
void reference(Floats& parameter, const Floats& gradient, Floats& velocity, const SgdStep& step) {
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    float d = gradient[i] * step.gradient_scale;
    if (step.weight_decay != 0.0F) d = d + step.weight_decay * parameter[i];
    if (step.momentum != 0.0F) {
      float& m = velocity[i];
      m = step.first ? d : step.momentum * m + (1.0F - step.dampening) * d;
      d = step.nesterov ? d + step.momentum * m : m;
    }
    parameter[i] = parameter[i] - step.lr * d;
  }
}

std::vector<SgdStep> steps() {
  std::vector<SgdStep> result;
  for (const float weight_decay : {0.0F, 0.01F}) {
    for (const float scale : {1.0F, 0.3F}) {
      const SgdStep plain{.lr = 0.1F, .weight_decay = weight_decay, .gradient_scale = scale};
      result.push_back(plain);
      for (const bool first : {false, true}) {
        SgdStep step = plain;
        step.momentum = 0.9F;
        step.first = first;
        result.push_back(step);
        step.dampening = 0.4F;
        result.push_back(step);
        step.dampening = 0.0F;
        step.nesterov = true;
        result.push_back(step);
      }
    }
  }
  return result;
}

TEST(SgdKernel, EveryInstructionSetFollowsTheFormulasBitForBit) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512}) {
    const cpu::KernelTable* table = cpu::find_table(isa);
    if (table == nullptr) continue;
    for (const SgdStep& step : steps()) {
      for (const std::size_t count : {0U, 1U, 3U, 4U, 5U, 15U, 16U, 17U, 63U, 64U, 65U, 1111U}) {
        Floats parameter(count);
        Floats gradient(count);
        Floats velocity(count);
        for (Floats* values : {&parameter, &gradient, &velocity}) {
          for (float& value : *values) value = normal(random);
        }
        Floats expected = parameter;
        Floats expected_velocity = velocity;
        reference(expected, gradient, expected_velocity, step);

        // One element off the alignment, with an element behind the end that must stay.
        for (Floats* values : {&parameter, &gradient, &velocity}) {
          values->insert(values->begin(), 42.0F);
          values->push_back(43.0F);
        }
        table->sgd_update(parameter.data() + 1, gradient.data() + 1,
                          step.momentum == 0.0F ? nullptr : velocity.data() + 1,
                          static_cast<std::int64_t>(count), step);
        for (Floats* values : {&expected, &expected_velocity}) {
          values->insert(values->begin(), 42.0F);
          values->push_back(43.0F);
        }
        ASSERT_EQ(parameter, expected) << cpu::name_of(isa) << " " << count;
        ASSERT_EQ(velocity, expected_velocity) << cpu::name_of(isa) << " " << count;
      }
    }
  }
}

TEST(SgdKernel, TermsOfZeroWeightAreLeftOut) {
  Floats parameter{kInf, 1.0F};
  const Floats gradient{1.0F, 2.0F};
  cpu::sgd_update(parameter.data(), gradient.data(), nullptr, 2, {.lr = 0.5F});
  EXPECT_EQ(parameter, (Floats{kInf, 0.0F}));  // infinity * 0 would be NaN
}

/** One update of `parameter` by `gradient`, elements from `offset` on. */
void update(SGD& sgd, Floats& parameter, const Floats& gradient, std::int64_t offset,
            std::int64_t count) {
  const ParameterRange range{offset, count, parameter.data() + offset, gradient.data() + offset};
  sgd.update(std::span(&range, 1));
}

void update(SGD& sgd, Floats& parameter, const Floats& gradient) {
  update(sgd, parameter, gradient, 0, static_cast<std::int64_t>(parameter.size()));
}

const std::vector<Floats> kGradients{
    {0.5F, -1.0F, 0.25F, 2.0F}, {-0.5F, 0.75F, 1.5F, -0.25F}, {1.0F, 0.125F, -2.0F, 0.5F}};

// PyTorch 1.13 computed these numbers:
//
//   p = torch.tensor([1.0, -2.0, 0.5, 3.0], requires_grad=True)
//   s = torch.optim.SGD([p], **options)
//   for g in gradients:
//       p.grad = torch.tensor(g)
//       s.step()
//   print(["%.9g" % v for v in p.tolist()])
TEST(Sgd, GivesTheNumbersOfPyTorch) {
  struct Case {
    SgdOptions options;
    Floats expected;
  };
  const std::vector<Case> cases{
      {{.lr = 0.1F}, {0.899999976F, -1.98750007F, 0.524999976F, 2.7750001F}},
      {{.lr = 0.1F, .weight_decay = 0.01F},
       {0.897052944F, -1.98163092F, 0.523701489F, 2.76638365F}},
      {{.lr = 0.1F, .momentum = 0.9F}, {0.859499991F, -1.88399994F, 0.347249985F, 2.45549989F}},
      {{.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F, .weight_decay = 0.01F},
       {0.85792464F, -1.79835558F, 0.387756079F, 2.44465017F}},
      {{.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F, .nesterov = true},
       {0.765848994F, -1.8677882F, 0.384306222F, 2.26281261F}}};
  for (const Case& c : cases) {
    SGD sgd(c.options);
    sgd.resize(4);
    Floats parameter{1.0F, -2.0F, 0.5F, 3.0F};
    for (const Floats& gradient : kGradients) {
      update(sgd, parameter, gradient);
      sgd.step();
    }
    // PyTorch contracts some products and sums to one rounding.
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(parameter[i], c.expected[i], 3e-7F) << i;
  }
}

TEST(Sgd, EachElementStartsItsMomentumWithItsOwnFirstUpdate) {
  constexpr std::int64_t kCount = 40;
  const SgdOptions options{.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F};
  SGD sgd(options);
  sgd.resize(kCount);
  Floats parameter(kCount, 1.0F);
  Floats velocity(kCount);
  Floats expected = parameter;
  std::vector<bool> started(kCount);
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const auto begin = static_cast<std::int64_t>(random() % kCount);
    const auto count = static_cast<std::int64_t>(random() % 8) % (kCount - begin + 1);
    const Floats gradient(kCount, static_cast<float>(random() % 9) - 4.0F);
    update(sgd, parameter, gradient, begin, count);
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(begin + count);
         ++i) {
      const float d = gradient[i];
      velocity[i] = started[i] ? 0.9F * velocity[i] + 0.5F * d : d;
      started[i] = true;
      expected[i] = expected[i] - 0.1F * velocity[i];
    }
    ASSERT_EQ(parameter, expected) << round;
    const OptimizerState state = sgd.state();
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(state.arrays.at("started")[i], started[i] ? 1.0F : 0.0F) << round << " " << i;
    }
    if (round % 7 == 0) {  // a new one goes on from the state
      sgd = SGD(options);
      sgd.resize(kCount);
      sgd.load_state(state);
    }
  }
}

TEST(Sgd, RangesOfOneUpdateAreSeparate) {
  SGD sgd({.lr = 1.0F, .momentum = 0.5F});
  sgd.resize(10);
  Floats low{0, 0};
  Floats high{0, 0, 0};
  const Floats gradient{1, 2, 3};
  const std::vector<ParameterRange> ranges{{7, 3, high.data(), gradient.data()},
                                           {0, 2, low.data(), gradient.data()},
                                           {4, 0, nullptr, nullptr}};
  sgd.update(ranges);
  sgd.update(ranges);
  EXPECT_EQ(high, (Floats{-2.5F, -5.0F, -7.5F}));
  EXPECT_EQ(low, (Floats{-2.5F, -5.0F}));
  EXPECT_EQ(sgd.state().arrays.at("momentum"), (Floats{1.5F, 3, 0, 0, 0, 0, 0, 1.5F, 3, 4.5F}));
}

TEST(Sgd, TheDefaultLearningRateIsThatOfPython) { EXPECT_EQ(SgdOptions{}.lr, 0.1F); }

TEST(Sgd, LearningRateTakesEffectWithTheNextUpdate) {
  SGD sgd({.lr = 1.0F});
  sgd.resize(1);
  Floats parameter{0.0F};
  update(sgd, parameter, {1.0F});
  sgd.set_lr(0.25F);
  update(sgd, parameter, {1.0F});
  EXPECT_EQ(parameter[0], -1.25F);
  EXPECT_EQ(sgd.options().lr, 0.25F);
}

TEST(Sgd, MomentumTakesEffectWithTheNextUpdate) {
  SGD sgd({.lr = 1.0F, .momentum = 0.5F});
  sgd.resize(1);
  Floats parameter{0.0F};
  update(sgd, parameter, {1.0F});
  sgd.set_momentum(0.25F);
  update(sgd, parameter, {1.0F});
  EXPECT_EQ(parameter[0], -2.25F);
  EXPECT_EQ(sgd.options().momentum, 0.25F);
}

/** The message of the InvalidArgument that `action` throws. */
std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_refusal(const std::string& name, const std::string& value,
                    const std::function<void()>& action) {
  const std::string message = refusal(action);
  EXPECT_NE(message.find(name), std::string::npos) << message;
  EXPECT_NE(message.find(value), std::string::npos) << message;
}

TEST(Sgd, BadOptionsAreRefused) {
  const auto make = [](const SgdOptions& options) { return [options] { SGD sgd(options); }; };
  expect_refusal("lr", "-0.5", make({.lr = -0.5F}));
  expect_refusal("lr", "nan", make({.lr = kNan}));
  expect_refusal("momentum", "inf", make({.momentum = kInf}));
  expect_refusal("weight_decay", "-1", make({.weight_decay = -1.0F}));
  expect_refusal("dampening", "nan", make({.dampening = kNan}));
  expect_refusal("nesterov", "momentum is 0", make({.nesterov = true}));
  expect_refusal("nesterov", "dampening is 0.5",
                 make({.momentum = 0.9F, .dampening = 0.5F, .nesterov = true}));
  SGD sgd({.lr = 0.5F});
  expect_refusal("lr", "-1", [&] { sgd.set_lr(-1.0F); });
  EXPECT_EQ(sgd.options().lr, 0.5F);
  expect_refusal("momentum", "nan", [&] { sgd.set_momentum(kNan); });
  expect_refusal("momentum is 0", "become 0.5", [&] { sgd.set_momentum(0.5F); });
  SGD heavy({.momentum = 0.5F});
  expect_refusal("momentum is 0.5", "become 0", [&] { heavy.set_momentum(0.0F); });
  EXPECT_EQ(heavy.options().momentum, 0.5F);
  expect_refusal("elements", "-3", [&] { sgd.resize(-3); });
}

TEST(Sgd, BadRangesAreRefusedAndChangeNothing) {
  SGD sgd({.lr = 1.0F});
  sgd.resize(8);
  Floats parameter(8);
  const Floats gradient(8, 1.0F);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const auto range = [&](std::int64_t offset, std::int64_t count) {
    return ParameterRange{offset, count, parameter.data(), gradient.data()};
  };
  for (const ParameterRange& bad : {range(-1, 2), range(0, 9), range(8, 1), range(9, 0),
                                    range(2, -1), range(kMax, kMax), range(1, kMax)}) {
    const std::vector<ParameterRange> ranges{range(0, 8), bad};
    expect_refusal("ranges[1]", std::to_string(bad.offset), [&] { sgd.update(ranges); });
  }
  for (const ParameterRange& bad : {ParameterRange{0, 1, nullptr, gradient.data()},
                                    ParameterRange{0, 1, parameter.data(), nullptr}}) {
    const std::vector<ParameterRange> ranges{range(0, 8), bad};
    expect_refusal("ranges[1]", "null", [&] { sgd.update(ranges); });
  }
  EXPECT_EQ(parameter, Floats(8));
}

TEST(Sgd, AStateCarriesTheMomentumAndTheStepsOver) {
  const SgdOptions options{.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F, .nesterov = true};
  SGD first(options);
  first.resize(4);
  Floats parameter{1.0F, -2.0F, 0.5F, 3.0F};
  update(first, parameter, kGradients[0]);
  first.step();
  EXPECT_EQ(first.state().numbers.at("steps"), 1.0);

  SGD second(options);
  second.resize(4);
  second.load_state(first.state());
  Floats copy = parameter;
  update(first, parameter, kGradients[1]);
  update(second, copy, kGradients[1]);
  EXPECT_EQ(copy, parameter);
  EXPECT_EQ(second.state().numbers, first.state().numbers);
  EXPECT_EQ(second.state().arrays, first.state().arrays);

  first.resize(4);  // starts afresh
  EXPECT_EQ(first.state().numbers.at("steps"), 0.0);
  EXPECT_EQ(first.state().arrays.at("momentum"), Floats(4));
}

TEST(Sgd, StatesOfOtherSpacesAndRulesAreRefusedAndChangeNothing) {
  SGD sgd({.momentum = 0.9F, .dampening = 0.5F});
  sgd.resize(3);
  Floats parameter(3);
  update(sgd, parameter, {1, 2, 3});
  sgd.step();
  const OptimizerState good = sgd.state();
  const auto changed = [&](const std::function<void(OptimizerState&)>& change) {
    return [&sgd, &good, change] {
      OptimizerState state = good;
      change(state);
      sgd.load_state(state);
    };
  };
  expect_refusal("momentum", "4", changed([](auto& s) { s.arrays["momentum"].resize(4); }));
  expect_refusal("momentum", "needs", changed([](auto& s) { s.arrays.erase("momentum"); }));
  expect_refusal("started", "needs", changed([](auto& s) { s.arrays.erase("started"); }));
  expect_refusal("started", "0.5", changed([](auto& s) { s.arrays["started"][1] = 0.5F; }));
  expect_refusal("variance", "know", changed([](auto& s) { s.arrays["variance"]; }));
  expect_refusal("beta", "know", changed([](auto& s) { s.numbers["beta"] = 1.0; }));
  expect_refusal("steps", "no number", changed([](auto& s) { s.numbers.clear(); }));
  for (const double steps : {-1.0, 0.5, 1e17, std::nan("")}) {
    expect_refusal("steps", "whole", changed([&](auto& s) { s.numbers["steps"] = steps; }));
  }
  EXPECT_EQ(sgd.state().arrays, good.arrays);
  EXPECT_EQ(sgd.state().numbers, good.numbers);

  SGD plain(SgdOptions{});
  plain.resize(3);
  expect_refusal("momentum", "does not keep", [&] { plain.load_state(good); });
  plain.load_state({.arrays = {}, .numbers = {{"steps", 9.0}}});
  EXPECT_EQ(plain.state().numbers.at("steps"), 9.0);
}

}  // namespace
}  // namespace tutti
