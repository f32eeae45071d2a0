// Adam and AdamW: check their arguments and keep the means; the arithmetic is the fused kernel's.
#include "tutti/adam.hpp"

#include <string>
#include <utility>

#include "base/text.hpp"
#include "device/arithmetic.hpp"
#include "device/device_memory.hpp"
#include "opt/optimizers/state_checks.hpp"
#include "opt/optimizers/update_checks.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr const char* kFirstMoment = "exp_avg";
constexpr const char* kSecondMoment = "exp_avg_sq";
constexpr const char* kAdamSteps = "steps";

void check_decay(const std::string& name, float value) {
  if (value >= 0.0F && value < 1.0F) return;
  throw InvalidArgument(name + " is " + number_text(value) +
                        ", but must be at least 0 and below 1");
}

void check(const AdamOptions& options, const std::string& owner) {
  check_rate(owner + "::lr", options.lr);
  check_decay(owner + "::beta1", options.beta1);
  check_decay(owner + "::beta2", options.beta2);
  check_rate(owner + "::eps", options.eps);
  check_rate(owner + "::weight_decay", options.weight_decay);
}

}  // namespace

Adam::Adam(const AdamOptions& options) : Adam(options, Decay::into_gradients, "AdamOptions") {}

Adam::Adam(const AdamOptions& options, Decay decay, const char* owner)
    : BuiltInOptimizer(options), decay_(decay) {
  check(options, owner);
}

Adam::Adam(Adam&&) noexcept = default;
Adam& Adam::operator=(Adam&&) noexcept = default;
Adam::~Adam() = default;

void Adam::set_betas(float beta1, float beta2) {
  check_decay("beta1", beta1);
  check_decay("beta2", beta2);
  options_.beta1 = beta1;
  options_.beta2 = beta2;
}

AdamW::AdamW(const AdamWOptions& options)
    : Adam({options.lr, options.beta1, options.beta2, options.eps, options.weight_decay},
           Decay::off_parameters, "AdamWOptions") {}

void Adam::resize(std::int64_t elements) {
  check_elements(elements);
  first_ = zeros(arithmetic_->stream(), elements);
  second_ = zeros(arithmetic_->stream(), elements);
  elements_ = elements;
  steps_ = 0;
}

void Adam::update(std::span<const ParameterRange> ranges) {
  check_ranges(ranges, elements_);
  const std::int64_t t = steps_ + 1;
  AdamStep step{
      .correction = adam_correction(options_.lr, power(static_cast<double>(options_.beta1), t),
                                    power(static_cast<double>(options_.beta2), t)),
      .beta1 = options_.beta1,
      .beta2 = options_.beta2,
      .eps = options_.eps};
  if (decay_ == Decay::into_gradients) {
    step.weight_decay = options_.weight_decay;
  } else {
    step.keep = static_cast<float>(1.0 - static_cast<double>(options_.lr) *
                                             static_cast<double>(options_.weight_decay));
  }
  auto* const first = static_cast<float*>(first_.data());
  auto* const second = static_cast<float*>(second_.data());
  for (auto range = ranges.begin(); range != ranges.end();) {
    step.gradient_scale = range->gradient_scale;
    pieces_.clear();
    do {
      pieces_.push_back({range->parameter, range->gradient, first + range->offset,
                         second + range->offset, range->count});
      ++range;
    } while (range != ranges.end() && range->gradient_scale == step.gradient_scale);
    arithmetic_->adam_update(pieces_, step);
  }
}

OptimizerState Adam::state() const {
  OptimizerState result;
  result.numbers[kAdamSteps] = static_cast<double>(steps_);
  result.arrays[kFirstMoment] = read(arithmetic_->stream(), first_.view(DType::f32));
  result.arrays[kSecondMoment] = read(arithmetic_->stream(), second_.view(DType::f32));
  return result;
}

void Adam::load_state(const OptimizerState& state) {
  refuse_unknown("Adam", state, {kAdamSteps}, {kFirstMoment, kSecondMoment});
  check_array("Adam", state, kFirstMoment, true, elements_);
  check_array("Adam", state, kSecondMoment, true, elements_);
  check_not_negative(state, kSecondMoment);
  const std::int64_t steps = needed_count_in(state, kAdamSteps);
  Buffer first = write(arithmetic_->stream(), state.arrays.at(kFirstMoment));
  second_ = write(arithmetic_->stream(), state.arrays.at(kSecondMoment));
  first_ = std::move(first);
  steps_ = steps;
}

}  // namespace tutti
