// SGD: checks its arguments and keeps the momentum; the arithmetic is the fused kernel's.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "device/arithmetic.hpp"
#include "device/device_memory.hpp"
#include "opt/optimizers/state_checks.hpp"
#include "opt/optimizers/update_checks.hpp"
#include "tutti/error.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {
namespace {

constexpr const char* kMomentum = "momentum";
constexpr const char* kStarted = "started";
constexpr const char* kSteps = "steps";

void check(const SgdOptions& options) {
  check_rate("SgdOptions::lr", options.lr);
  check_rate("SgdOptions::momentum", options.momentum);
  check_rate("SgdOptions::weight_decay", options.weight_decay);
  if (!std::isfinite(options.dampening)) {
    throw InvalidArgument("SgdOptions::dampening is " + number_text(options.dampening) +
                          ", but must be finite");
  }
  if (options.nesterov && (options.momentum == 0.0F || options.dampening != 0.0F)) {
    throw InvalidArgument("SgdOptions::nesterov needs momentum and no dampening, but momentum is " +
                          number_text(options.momentum) + " and dampening is " +
                          number_text(options.dampening));
  }
}

/** Whether elements of `options` remember if their momentum has started. */
bool tracks_start(const SgdOptions& options) {
  return options.momentum != 0.0F && options.dampening != 0.0F;
}

}  // namespace

SGD::SGD(const SgdOptions& options) : BuiltInOptimizer(options) { check(options); }

SGD::SGD(SGD&&) noexcept = default;
SGD& SGD::operator=(SGD&&) noexcept = default;
SGD::~SGD() = default;

void SGD::set_momentum(float momentum) {
  check_rate("momentum", momentum);
  if ((momentum == 0.0F) != (options_.momentum == 0.0F)) {
    throw InvalidArgument("momentum is " + number_text(options_.momentum) + " and cannot become " +
                          number_text(momentum) + ": without momentum none is kept");
  }
  options_.momentum = momentum;
}

void SGD::resize(std::int64_t elements) {
  check_elements(elements);
  const bool keeps_momentum = options_.momentum != 0.0F;
  momentum_ = keeps_momentum ? zeros(arithmetic_->stream(), elements) : Buffer();
  started_.clear();
  elements_ = elements;
  steps_ = 0;
}

void SGD::update(std::span<const ParameterRange> ranges) {
  check_ranges(ranges, elements_);
  for (const ParameterRange& range : ranges) {
    if (tracks_start(options_)) {
      add_tracked(range);
    } else {
      add_part(range, 0, range.count, false);
    }
  }
  update_parts();
}

void SGD::add_part(const ParameterRange& range, std::int64_t from, std::int64_t count, bool first) {
  if (range.gradient_scale != scale_ || first != first_) update_parts();
  scale_ = range.gradient_scale;
  first_ = first;
  auto* velocity = static_cast<float*>(momentum_.data());
  if (velocity != nullptr) velocity += range.offset + from;
  parts_.push_back({range.parameter + from, range.gradient + from, velocity, count});
}

void SGD::update_parts() {
  if (parts_.empty()) return;
  arithmetic_->sgd_update(parts_, {.lr = options_.lr,
                                   .momentum = options_.momentum,
                                   .dampening = options_.dampening,
                                   .weight_decay = options_.weight_decay,
                                   .nesterov = options_.nesterov,
                                   .first = first_,
                                   .gradient_scale = scale_});
  parts_.clear();
}

void SGD::add_tracked(const ParameterRange& range) {
  const std::int64_t end = range.offset + range.count;
  bool any_first = false;
  for (std::int64_t at = range.offset; at < end;) {
    const auto next = started_.upper_bound(at);
    const bool first = next == started_.begin() || std::prev(next)->second <= at;
    const std::int64_t stretch_end = !first                   ? std::prev(next)->second
                                     : next == started_.end() ? end
                                                              : next->first;
    const std::int64_t stop = std::min(stretch_end, end);
    add_part(range, at - range.offset, stop - at, first);
    any_first = any_first || first;
    at = stop;
  }
  if (any_first) mark_started(range.offset, end);
}

void SGD::mark_started(std::int64_t begin, std::int64_t end) {
  // Joins what it touches, so that the number of ranges stays small.
  auto touching = started_.upper_bound(begin);
  if (touching != started_.begin() && std::prev(touching)->second >= begin) --touching;
  while (touching != started_.end() && touching->first <= end) {
    begin = std::min(begin, touching->first);
    end = std::max(end, touching->second);
    touching = started_.erase(touching);
  }
  started_.emplace(begin, end);
}

OptimizerState SGD::state() const {
  OptimizerState result;
  result.numbers[kSteps] = static_cast<double>(steps_);
  if (options_.momentum != 0.0F) {
    result.arrays[kMomentum] = read(arithmetic_->stream(), momentum_.view(DType::f32));
  }
  if (tracks_start(options_)) {  // 1 or 0 for each element: an array that can be cut into ranges
    std::vector<float>& flags = result.arrays[kStarted];
    flags.resize(static_cast<std::size_t>(elements_));
    for (const auto& [begin, end] : started_) {
      std::fill(flags.begin() + begin, flags.begin() + end, 1.0F);
    }
  }
  return result;
}

void SGD::load_state(const OptimizerState& state) {
  refuse_unknown("SGD", state, {kSteps}, {kMomentum, kStarted});
  check_array("SGD", state, kMomentum, options_.momentum != 0.0F, elements_);
  check_array("SGD", state, kStarted, tracks_start(options_), elements_);
  const std::int64_t steps = needed_count_in(state, kSteps);

  Buffer momentum;
  if (options_.momentum != 0.0F) {
    momentum = write(arithmetic_->stream(), state.arrays.at(kMomentum));
  }
  std::map<std::int64_t, std::int64_t> started;
  if (tracks_start(options_)) {
    const std::vector<float>& flags = state.arrays.at(kStarted);
    for (auto flag = flags.begin(); flag != flags.end();) {
      if (*flag != 0.0F && *flag != 1.0F) {
        throw InvalidArgument("element " + std::to_string(flag - flags.begin()) +
                              " of the state's array 'started' is " + number_text(*flag) +
                              ", but must be 0 or 1");
      }
      const auto stop =
          std::find_if(flag, flags.end(), [&](float other) { return other != *flag; });
      if (*flag == 1.0F) started.emplace(flag - flags.begin(), stop - flags.begin());
      flag = stop;
    }
  }
  steps_ = steps;
  momentum_ = std::move(momentum);
  started_ = std::move(started);
}

}  // namespace tutti
