// Update rules. Compiled without ThreadSanitizer: elements are changed while others read them.
#include "ps/table/rules.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <variant>

#include "device/elementwise.hpp"

namespace tutti::ps {
namespace {

constexpr std::size_t kMostCorrections = std::size_t{1} << 16U;
constexpr std::int64_t kLanes = 8;
constexpr std::size_t kSummed = 1024;  // elements of several gradients that are added up at once

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

/** The mean of (scale * gradient)^2; element i is added to sum number i % 8, then the sums. */
float mean_square(const float* gradient, std::int64_t count, float scale) {
  std::array<float, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float g = scale * gradient[i + lane];
      sums[static_cast<std::size_t>(lane)] += g * g;
    }
  }
  for (std::int64_t lane = 0; i + lane < count; ++lane) {
    const float g = scale * gradient[i + lane];
    sums[static_cast<std::size_t>(lane)] += g * g;
  }
  float sum = 0.0F;
  for (const float part : sums) sum += part;
  return sum / static_cast<float>(count);
}

/** The sum of two or more terms' elements from `begin` on. */
void add_up(std::span<const float* const> terms, std::int64_t begin, std::int64_t count,
            float* __restrict sum) {
  const float* const first = terms[0] + begin;
  const float* const second = terms[1] + begin;
  for (std::int64_t i = 0; i < count; ++i) sum[i] = first[i] + second[i];
  for (const float* term : terms.subspan(2)) {
    term += begin;
    for (std::int64_t i = 0; i < count; ++i) sum[i] += term[i];
  }
}

}  // namespace

std::int64_t state_floats(const Rule& rule, std::int64_t count) {
  return std::visit(
      Overloaded{[](const Sgd&) { return std::int64_t{0}; }, [&](const Momentum&) { return count; },
                 [&](const Adagrad& adagrad) { return adagrad.row_wise ? 1 : count; },
                 [&](const Adam&) { return 2 * count + 1; }},
      rule);
}

RuleKernel::RuleKernel(const Rule& rule) : rule_(rule) {
  const auto* adam = std::get_if<Adam>(&rule_);
  if (adam == nullptr) return;
  double power1 = 1.0;
  double power2 = 1.0;
  const AdamCorrection last = adam_correction(adam->lr, 0.0, 0.0);
  do {
    power1 *= static_cast<double>(adam->beta1);
    power2 *= static_cast<double>(adam->beta2);
    corrections_.push_back(adam_correction(adam->lr, power1, power2));
  } while (corrections_.size() < kMostCorrections &&
           (corrections_.back().rate != last.rate || corrections_.back().root != last.root));
}

AdamCorrection RuleKernel::correction(const Adam& adam, float steps) const {
  const auto t = static_cast<std::size_t>(steps);
  if (t <= corrections_.size()) return corrections_[t - 1];
  if (corrections_.size() < kMostCorrections) return corrections_.back();
  const auto exponent = static_cast<std::int64_t>(t);
  return adam_correction(adam.lr, power(static_cast<double>(adam.beta1), exponent),
                         power(static_cast<double>(adam.beta2), exponent));
}

AdamCorrection RuleKernel::next_correction(const Adam& adam, float& steps) const {
  steps += 1.0F;  // a float counts to 2^24, and stays there: that is not told from more
  return correction(adam, steps);
}

void RuleKernel::start(float* state, std::int64_t count) const {
  const auto* adagrad = std::get_if<Adagrad>(&rule_);
  const float value = adagrad == nullptr ? 0.0F : adagrad->initial_accumulator;
  std::fill_n(state, state_floats(rule_, count), value);
}

void RuleKernel::apply(float* weights, float* state, const float* gradient, std::int64_t count,
                       float scale) const {
  std::visit([&](const auto& rule) { update(rule, weights, state, gradient, count, scale); },
             rule_);
}

void RuleKernel::apply(float* weights, float* state, std::span<const float* const> gradients,
                       std::int64_t count, float scale) const {
  if (gradients.size() == 1) {
    apply(weights, state, gradients.front(), count, scale);
    return;
  }
  const auto* adam = std::get_if<Adam>(&rule_);
  const AdamCorrection now =
      adam == nullptr ? AdamCorrection{} : next_correction(*adam, state[2 * count]);
  std::array<float, kSummed> sum;
  for (std::int64_t begin = 0; begin < count; begin += std::ssize(sum)) {
    const std::int64_t part = std::min(std::ssize(sum), count - begin);
    float* const first = state == nullptr ? nullptr : state + begin;
    add_up(gradients, begin, part, sum.data());
    std::visit(Overloaded{[&](const Adam& rule) {
                            update(rule, now, weights + begin, first, first + count, sum.data(),
                                   part, scale);
                          },
                          [&](const auto& rule) {
                            update(rule, weights + begin, first, sum.data(), part, scale);
                          }},
               rule_);
  }
}

void RuleKernel::update(const Sgd& rule, float* __restrict weights, float* /*state*/,
                        const float* __restrict gradient, std::int64_t count, float scale) const {
  const float lr = rule.lr;
  for (std::int64_t i = 0; i < count; ++i) weights[i] -= lr * (scale * gradient[i]);
}

void RuleKernel::update(const Momentum& rule, float* __restrict weights, float* __restrict state,
                        const float* __restrict gradient, std::int64_t count, float scale) const {
  const Momentum local = rule;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i];
    const float m = local.momentum * state[i] + g;
    state[i] = m;
    weights[i] -= local.lr * (local.nesterov ? g + local.momentum * m : m);
  }
}

void RuleKernel::update(const Adagrad& rule, float* __restrict weights, float* __restrict state,
                        const float* __restrict gradient, std::int64_t count, float scale) const {
  const Adagrad local = rule;
  if (local.row_wise) {
    state[0] += mean_square(gradient, count, scale);
    const float divisor = std::sqrt(state[0]) + local.eps;
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] -= local.lr * (scale * gradient[i]) / divisor;
    }
    return;
  }
  const AdagradStep step{.rate = local.lr, .eps = local.eps};
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i];
    const float v = state[i] + g * g;
    state[i] = v;
    weights[i] = adagrad_parameter(weights[i], g, std::sqrt(v), step);
  }
}

void RuleKernel::update(const Adam& rule, float* weights, float* state, const float* gradient,
                        std::int64_t count, float scale) const {
  const AdamCorrection now = next_correction(rule, state[2 * count]);
  update(rule, now, weights, state, state + count, gradient, count, scale);
}

void RuleKernel::update(const Adam& rule, const AdamCorrection& now, float* __restrict weights,
                        float* __restrict first, float* __restrict second,
                        const float* __restrict gradient, std::int64_t count, float scale) const {
  const AdamStep step{.correction = now,
                      .beta1 = rule.beta1,
                      .beta2 = rule.beta2,
                      .eps = rule.eps,
                      .gradient_scale = scale};
  for (std::int64_t i = 0; i < count; ++i) {
    const AdamElement<float> next =
        adam_moments({weights[i], first[i], second[i]}, gradient[i], step);
    first[i] = next.first;
    second[i] = next.second;
    weights[i] = adam_parameter(next, std::sqrt(next.second), step);
  }
}

void add_scaled(float* __restrict weights, const float* __restrict deltas, std::int64_t count,
                float scale) {
  for (std::int64_t i = 0; i < count; ++i) weights[i] += scale * deltas[i];
}

}  // namespace tutti::ps
