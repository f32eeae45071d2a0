// What a step of DistOpt is to do, and what is refused of it.
#include "opt/step_plan.hpp"

#include <cmath>
#include <string>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {

std::string_view method_of(DistMode mode) {
  for (const NamedMode& named : named_modes()) {
    if (named.mode == mode) return named.method;
  }
  return "backward_and_custom_update";
}

StepPlan plan_of(const DistOptions& options, std::int64_t bucket_elements) {
  return {options.mode,       bucket_elements, options.clipping,
          options.clip_value, options.spars,   options.corr};
}

void check_spars(std::string_view method, double spars, bool top_k) {
  const bool good = top_k ? spars > 0.0 && spars <= 1.0 : spars >= 0.0 && std::isfinite(spars);
  if (good) return;
  throw InvalidArgument(
      std::string(method) + ": spars is " + number_text(spars) + ", but must be " +
      (top_k ? "above 0 and at most 1 for top-K" : "finite and not negative for a threshold"));
}

void check(std::string_view method, const StepPlan& plan, const DistOptions& options) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(std::string(method) + ": " + what);
  };
  if (plan.mode == DistMode::half && plan.clipping &&
      !(plan.clip_value > 0.0F && std::isfinite(plan.clip_value))) {
    refuse("clip_value is " + number_text(plan.clip_value) + ", but must be finite and positive");
  }
  if (plan.is_sparse()) check_spars(method, plan.spars, plan.is_top_k());
  if (plan.is_sparse() && !plan.correct && options.sparse.momentum != 0.0F) {
    refuse("corr is false, but the momentum correction of SparseOptions needs it");
  }
  if (plan.mode == DistMode::custom && !options.compressor) {
    refuse("DistOptions::compressor is empty, so there is none to use");
  }
}

void check_options(std::string_view who, const DistOptions& options) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(std::string(who) + ": " + what);
  };
  if (options.bucket_elements < 1) {
    refuse("bucket_elements is " + std::to_string(options.bucket_elements) +
           "; it must be at least 1");
  }
  if (options.half != DType::f16 && options.half != DType::bf16) {
    refuse("half is " + std::string(name_of(options.half)) + "; it must be f16 or bf16");
  }
  const SparseOptions& sparse = options.sparse;
  if (!(sparse.momentum >= 0.0F && sparse.momentum < 1.0F)) {
    refuse("sparse.momentum is " + number_text(sparse.momentum) +
           "; it must be at least 0 and below 1");
  }
  if (!(sparse.clip_norm >= 0.0F && std::isfinite(sparse.clip_norm))) {
    refuse("sparse.clip_norm is " + number_text(sparse.clip_norm) +
           "; it must be finite and not negative");
  }
  if (sparse.warm_up_epochs < 0) {
    refuse("sparse.warm_up_epochs is " + std::to_string(sparse.warm_up_epochs) +
           "; it must not be negative");
  }
  if (sparse.warm_up_epochs > 0 && sparse.epoch_steps < 1) {
    refuse("sparse.epoch_steps is " + std::to_string(sparse.epoch_steps) +
           "; a warm-up needs at least 1");
  }
  check(who, plan_of(options, options.bucket_elements), options);
}

SparseChoice sparse_choice(const StepPlan& plan, const SparseOptions& options, std::int64_t steps,
                           int world_size) {
  SparseChoice choice{.top_k = plan.is_top_k(),
                      .spars = plan.spars,
                      .correct = plan.correct,
                      .momentum = options.momentum,
                      .norm_limit = static_cast<float>(options.clip_norm / std::sqrt(world_size))};
  if (choice.top_k && options.warm_up_epochs > 0) {
    const std::int64_t full_epochs = steps / options.epoch_steps;
    const auto epoch = static_cast<double>(full_epochs);
    const auto epochs = static_cast<double>(options.warm_up_epochs);
    if (epoch < epochs) choice.spars = std::pow(plan.spars, (epoch + 1.0) / (epochs + 1.0));
  }
  return choice;
}

}  // namespace tutti
