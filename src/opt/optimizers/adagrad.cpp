// Adagrad: checks its arguments and keeps the sum of squares; the arithmetic is the fused kernel's.
#include "tutti/adagrad.hpp"

#include <vector>

#include "device/arithmetic.hpp"
#include "device/device_memory.hpp"
#include "opt/optimizers/state_checks.hpp"
#include "opt/optimizers/update_checks.hpp"

namespace tutti {
namespace {

constexpr const char* kSum = "sum";
constexpr const char* kAdagradSteps = "steps";

void check(const AdagradOptions& options) {
  check_rate("AdagradOptions::lr", options.lr);
  check_rate("AdagradOptions::lr_decay", options.lr_decay);
  check_rate("AdagradOptions::weight_decay", options.weight_decay);
  check_rate("AdagradOptions::initial_accumulator_value", options.initial_accumulator_value);
  check_rate("AdagradOptions::eps", options.eps);
}

}  // namespace

Adagrad::Adagrad(const AdagradOptions& options) : BuiltInOptimizer(options) { check(options); }

Adagrad::Adagrad(Adagrad&&) noexcept = default;
Adagrad& Adagrad::operator=(Adagrad&&) noexcept = default;
Adagrad::~Adagrad() = default;

void Adagrad::resize(std::int64_t elements) {
  check_elements(elements);
  const Stream& stream = arithmetic_->stream();
  const float start = options_.initial_accumulator_value;
  if (start == 0.0F) {
    sum_ = zeros(stream, elements);
  } else {
    sum_ = write(stream, std::vector<float>(static_cast<std::size_t>(elements), start));
  }
  elements_ = elements;
  steps_ = 0;
}

void Adagrad::update(std::span<const ParameterRange> ranges) {
  check_ranges(ranges, elements_);
  const double slower = 1.0 + static_cast<double>(steps_) * static_cast<double>(options_.lr_decay);
  AdagradStep step{.rate = static_cast<float>(static_cast<double>(options_.lr) / slower),
                   .eps = options_.eps,
                   .weight_decay = options_.weight_decay};
  auto* const sum = static_cast<float*>(sum_.data());
  for (auto range = ranges.begin(); range != ranges.end();) {
    step.gradient_scale = range->gradient_scale;
    pieces_.clear();
    do {
      pieces_.push_back({range->parameter, range->gradient, sum + range->offset, range->count});
      ++range;
    } while (range != ranges.end() && range->gradient_scale == step.gradient_scale);
    arithmetic_->adagrad_update(pieces_, step);
  }
}

OptimizerState Adagrad::state() const {
  OptimizerState result;
  result.numbers[kAdagradSteps] = static_cast<double>(steps_);
  result.arrays[kSum] = read(arithmetic_->stream(), sum_.view(DType::f32));
  return result;
}

void Adagrad::load_state(const OptimizerState& state) {
  refuse_unknown("Adagrad", state, {kAdagradSteps}, {kSum});
  check_array("Adagrad", state, kSum, true, elements_);
  check_not_negative(state, kSum);
  const std::int64_t steps = needed_count_in(state, kAdagradSteps);
  sum_ = write(arithmetic_->stream(), state.arrays.at(kSum));
  steps_ = steps;
}

}  // namespace tutti
