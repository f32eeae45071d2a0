// What is done to one element, the same on CPUs and GPUs: plain formulas without state. The CPU's
// vector kernels have them in vector form, and a test holds the two together.
#pragma once

#include <limits>

namespace tutti {

/** How f32 elements become f16 or bf16 ones. */
struct Narrowing {
  float scale = 1.0F;  ///< multiplies every element, after the clipping
  float limit = 0.0F;  ///< if positive, finite elements are clipped to [-limit, limit] first
};

/** What one step of SGD does; formulas: tutti::SGD. */
struct SgdStep {
  float lr = 0.0F;
  float momentum = 0.0F;
  float dampening = 0.0F;
  float weight_decay = 0.0F;
  bool nesterov = false;
  bool first = false;           ///< the momentum buffer starts with this step
  float gradient_scale = 1.0F;  ///< multiplies the gradient first
};

/** Neither an infinity nor NaN. */
constexpr bool is_finite(float value) { return value - value == 0.0F; }

/** What narrow() makes of an element before it is rounded: by choices, which need no branches. */
constexpr float clip_and_scale(float value, const Narrowing& narrowing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float limit = narrowing.limit > 0.0F ? narrowing.limit : kInfinity;
  const float below = value > limit ? limit : value;
  const float clipped = below < -limit ? -limit : below;
  return (is_finite(value) ? clipped : value) * narrowing.scale;
}

/** A parameter and its momentum. */
struct SgdElement {
  float parameter = 0.0F;
  float velocity = 0.0F;
};

/** One step of SGD (formulas: tutti::SGD); without momentum, `velocity` means nothing. */
constexpr SgdElement sgd_step(SgdElement element, float gradient, bool has_velocity,
                              const SgdStep& step) {
  float d = gradient * step.gradient_scale;
  if (step.weight_decay != 0.0F) d = d + element.parameter * step.weight_decay;
  if (has_velocity) {
    float m = d;
    if (!step.first) m = element.velocity * step.momentum + d * (1.0F - step.dampening);
    d = step.nesterov ? d + m * step.momentum : m;
    element.velocity = m;
  }
  element.parameter = element.parameter - d * step.lr;
  return element;
}

}  // namespace tutti
