// Adam and AdamW.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/optimizer.hpp"

namespace tutti {

struct AdamPiece;

/** What the names mean is in Adam's formulas; the defaults are PyTorch's. */
struct AdamOptions {
  float lr = 0.001F;          ///< the learning rate
  float beta1 = 0.9F;         ///< how much of m is kept, at least 0 and below 1
  float beta2 = 0.999F;       ///< how much of v is kept, at least 0 and below 1
  float eps = 1e-8F;          ///< keeps the divisor from zero
  float weight_decay = 0.0F;  ///< times the parameter, added to the gradient
};

/**
 * Adam (Kingma and Ba, ICLR 2015) with PyTorch's formulas (torch.optim.Adam):
 *
 *     d = g + weight_decay * p
 *     m = beta1 * m + (1 - beta1) * d
 *     v = beta2 * v + (1 - beta2) * d * d
 *     p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * in one pass over the memory; m and v start from zero. t counts the calls of step(), and is 1
 * before the first: an element that is updated in some steps alone is corrected for the age of all.
 */
class Adam : public BuiltInOptimizer<AdamOptions> {
 public:
  /** Throws InvalidArgument for a negative or non-finite lr, eps or weight_decay, and for a beta1
   * or beta2 that is not at least 0 and below 1. */
  explicit Adam(const AdamOptions& options);
  Adam(const Adam&) = delete;
  Adam& operator=(const Adam&) = delete;
  Adam(Adam&&) noexcept;
  Adam& operator=(Adam&&) noexcept;
  ~Adam() override;

  /** Take effect with the next update, whose means are corrected as if they had always been these.
   * Throws InvalidArgument, and changes neither, unless both are at least 0 and below 1. */
  void set_betas(float beta1, float beta2);

  void resize(std::int64_t elements) override;
  void update(std::span<const ParameterRange> ranges) override;
  /** The arrays m as "exp_avg" and v as "exp_avg_sq", and the number "steps". */
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 protected:
  /** Where the decay of weights goes. */
  enum class Decay : std::uint8_t { into_gradients, off_parameters };
  /** `owner` is what errors call the options. */
  Adam(const AdamOptions& options, Decay decay, const char* owner);

 private:
  Decay decay_;
  Buffer first_;                   // m
  Buffer second_;                  // v
  std::vector<AdamPiece> pieces_;  // of one update
};

/** As AdamOptions, but for weight_decay, which with lr is what a step takes off a parameter. */
struct AdamWOptions {
  float lr = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float eps = 1e-8F;
  float weight_decay = 0.01F;
};

/**
 * Adam whose weights decay by themselves (Loshchilov and Hutter, ICLR 2019; torch.optim.AdamW):
 * d = g, and the last formula starts from (1 - lr * weight_decay) * p instead of p.
 */
class AdamW final : public Adam {
 public:
  /** Throws as Adam does. */
  explicit AdamW(const AdamWOptions& options);
};

}  // namespace tutti
