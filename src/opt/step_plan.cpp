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

}  // namespace tutti
