// Chooses the elements of a gradient that are worth sending.
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/dtype.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/**
 * Selects elements by magnitude, exactly, and keeps the others back (error feedback).
 *
 * With a residual, what is selected from is residual[i] + gradient[i]; selected elements leave a
 * residual of zero, the others all they have. Without one, it is the gradient. Infinities and NaNs
 * are always selected, so they reach every rank and stay in no residual.
 *
 * Views are f32 on the CPU and have at most kMostSparse elements; `residual` is as long as
 * `gradient`, or empty for none. Results ascend by index, lie in the selector and are valid until
 * its next call. They are the same bits whatever instruction set runs. Memory is allocated when a
 * gradient is longer than all before; most of it is never touched. Throws InvalidArgument before
 * anything is changed. Calls block; one at a time.
 */
class Selector {
 public:
  Selector();
  Selector(Selector&&) noexcept;
  Selector& operator=(Selector&&) noexcept;
  Selector(const Selector&) = delete;
  Selector& operator=(const Selector&) = delete;
  ~Selector();

  /**
   * The `k` elements of largest magnitude; among equal ones those of lowest index. Exactly `k`,
   * from 0 to gradient.count, unless more than `k` are not finite: then these are selected.
   */
  SparseView top_k(ConstView gradient, std::int64_t k, View residual = {});
  /** The elements whose magnitude is at least `threshold`, which is not negative. */
  SparseView above(ConstView gradient, float threshold, View residual = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
