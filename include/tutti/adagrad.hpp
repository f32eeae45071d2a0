// Adagrad.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/optimizer.hpp"

namespace tutti {

struct AdagradPiece;

/** What the names mean is in Adagrad's formulas; the defaults are PyTorch's. None is negative. */
struct AdagradOptions {
  float lr = 0.01F;                        ///< the learning rate
  float lr_decay = 0.0F;                   ///< by how much it falls with each step
  float weight_decay = 0.0F;               ///< times the parameter, added to the gradient
  float initial_accumulator_value = 0.0F;  ///< what s starts from
  float eps = 1e-10F;                      ///< keeps the divisor from zero
};

/**
 * Adagrad (Duchi, Hazan and Singer, JMLR 2011) with PyTorch's formulas (torch.optim.Adagrad):
 *
 *     d = g + weight_decay * p
 *     s = s + d * d
 *     p = p - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)
 *
 * in one pass over the memory; s starts from initial_accumulator_value. t counts the calls of
 * step(), and is 1 before the first.
 */
class Adagrad final : public BuiltInOptimizer<AdagradOptions> {
 public:
  /** Throws InvalidArgument for an option that is negative or not finite. */
  explicit Adagrad(const AdagradOptions& options);
  Adagrad(const Adagrad&) = delete;
  Adagrad& operator=(const Adagrad&) = delete;
  Adagrad(Adagrad&&) noexcept;
  Adagrad& operator=(Adagrad&&) noexcept;
  ~Adagrad() override;

  void resize(std::int64_t elements) override;
  void update(std::span<const ParameterRange> ranges) override;
  /** Without weight decay, unless eps is 0. */
  bool keeps_where_zero() const override {
    return options_.weight_decay == 0.0F && options_.eps > 0.0F;
  }
  /** The array s as "sum", and the number "steps". */
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 private:
  Buffer sum_;                        // s
  std::vector<AdagradPiece> pieces_;  // of one update
};

}  // namespace tutti
