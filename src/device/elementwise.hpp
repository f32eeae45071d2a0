// What is done to one element, the same on CPUs and GPUs: plain formulas without state. The CPU's
// vector kernels have them in vector form, and a test holds the two together.
#pragma once

#include <cmath>
#include <cstdint>
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

/** What Adam's formula has of the number t of its step, in the form that PyTorch computes it. */
struct AdamCorrection {
  float rate = 0.0F;  ///< lr / (1 - beta1^t)
  float root = 1.0F;  ///< sqrt(1 - beta2^t)
};

/** What one step of Adam or AdamW does; formulas: tutti::Adam. */
struct AdamStep {
  AdamCorrection correction;
  float beta1 = 0.0F;
  float beta2 = 0.0F;
  float eps = 0.0F;
  float weight_decay = 0.0F;    ///< Adam's: of the parameter, added to the gradient
  float keep = 1.0F;            ///< AdamW's: multiplies the parameter first
  float gradient_scale = 1.0F;  ///< multiplies the gradient first
};

/** What one step of Adagrad does; formulas: tutti::Adagrad. */
struct AdagradStep {
  float rate = 0.0F;
  float eps = 0.0F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;  ///< multiplies the gradient first
};

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

// Adam and Adagrad: `Real` is float, or a vector of floats, so that all that has these rules has
// them from here. Who calls them takes the square root, which each device has its own way for. No
// multiply-add is fused.

/** The gradient that a rule starts from. */
template <class Real>
constexpr Real decayed_gradient(Real gradient, Real parameter, float scale, float weight_decay) {
  Real g = gradient * scale;
  if (weight_decay != 0.0F) g = g + parameter * weight_decay;
  return g;
}

/** A parameter, and the decaying means of its gradients and of their squares. */
template <class Real>
struct AdamElement {
  Real parameter;
  Real first;
  Real second;
};

/** The means after one more gradient. */
template <class Real>
constexpr AdamElement<Real> adam_moments(AdamElement<Real> element, Real gradient,
                                         const AdamStep& step) {
  const Real g =
      decayed_gradient(gradient, element.parameter, step.gradient_scale, step.weight_decay);
  element.first = element.first * step.beta1 + g * (1.0F - step.beta1);
  element.second = element.second * step.beta2 + g * (1.0F - step.beta2) * g;
  return element;
}

/** The parameter that follows; `root` is the square root of element.second. */
template <class Real>
constexpr Real adam_parameter(const AdamElement<Real>& element, Real root, const AdamStep& step) {
  return element.parameter * step.keep -
         element.first * step.correction.rate / (root / step.correction.root + step.eps);
}

/** The parameter after a step with `gradient`, which is decayed_gradient(); `root` is the square
 * root of the sum of the squares of all gradients. */
template <class Real>
constexpr Real adagrad_parameter(Real parameter, Real gradient, Real root,
                                 const AdagradStep& step) {
  return parameter - gradient * step.rate / (root + step.eps);
}

/** base^exponent by squaring: libraries differ in the last bit. */
constexpr double power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}

/** From beta1^t and beta2^t. */
inline AdamCorrection adam_correction(float lr, double power1, double power2) {
  return {static_cast<float>(static_cast<double>(lr) / (1.0 - power1)),
          static_cast<float>(std::sqrt(1.0 - power2))};
}

}  // namespace tutti
