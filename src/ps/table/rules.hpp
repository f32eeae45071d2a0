// What one push does to a row, or to a block of dense parameters, by each update rule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/elementwise.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** Throws InvalidArgument for a rule that makes no sense, naming whose it is ("table 'item'"), the
 * field and its value. */
void check(const Rule& rule, const std::string& owner);

/** How many floats of state `count` elements of a rule have. */
std::int64_t state_floats(const Rule& rule, std::int64_t count);

/**
 * A rule that is ready to be applied, to any number of rows or blocks: all that changes from one
 * push to the next lies in their state. That is, one array after the other:
 *
 *     Sgd nothing | Momentum m | Adagrad v (row_wise: one number) | Adam m, v, and its steps
 *
 * Element by element, no multiply-add is fused: the same bits on every machine. Readers in other
 * threads and processes never see a part of an element.
 */
class RuleKernel {
 public:
  /** `rule` has been checked. */
  explicit RuleKernel(const Rule& rule);

  /** Writes the state of elements that have not been pushed. */
  void start(float* state, std::int64_t count) const;
  /** One push of `scale * gradient`. The arrays do not overlap. */
  void apply(float* weights, float* state, const float* gradient, std::int64_t count,
             float scale) const;
  /** The same of `scale` times the sum of several gradients, added up in their order, piece by
   * piece, so that the sums stay in the nearest cache. Not for rows that share state. */
  void apply(float* weights, float* state, std::span<const float* const> gradients,
             std::int64_t count, float scale) const;

 private:
  AdamCorrection correction(const Adam& adam, float steps) const;
  /** Counts a step. */
  AdamCorrection next_correction(const Adam& adam, float& steps) const;

  void update(const Sgd& rule, float* weights, float* state, const float* gradient,
              std::int64_t count, float scale) const;
  void update(const Momentum& rule, float* weights, float* state, const float* gradient,
              std::int64_t count, float scale) const;
  void update(const Adagrad& rule, float* weights, float* state, const float* gradient,
              std::int64_t count, float scale) const;
  void update(const Adam& rule, float* weights, float* state, const float* gradient,
              std::int64_t count, float scale) const;
  void update(const Adam& rule, const AdamCorrection& now, float* weights, float* first,
              float* second, const float* gradient, std::int64_t count, float scale) const;

  Rule rule_;
  std::vector<AdamCorrection> corrections_;  ///< [t - 1], as far as they differ
};

/** weights += scale * deltas, seen by readers as RuleKernel's updates are. */
void add_scaled(float* weights, const float* deltas, std::int64_t count, float scale);

}  // namespace tutti::ps
