// Averages gradients over the ranks, in the modes of DistOpt: for training loops that are another
// library's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tutti/communicator.hpp"
#include "tutti/device.hpp"
#include "tutti/dist_options.hpp"
#include "tutti/dtype.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {

/**
 * One bucket: the gradients of some parameters, one after the other without gaps, that travel
 * together at every step. What a sparse mode keeps from step to step is kept here.
 *
 * Not thread-safe; several may share a communicator.
 */
class BucketAverage {
 public:
  /**
   * `counts` are the elements of the parameters' gradients, which lie in memory of `device`. Of
   * the options it reads those of the mode, and `stream`. Local; throws InvalidArgument for
   * options that are refused by DistOpt, too, for the modes partial and custom, and for what is
   * negative or empty.
   */
  BucketAverage(std::shared_ptr<Communicator> communicator, std::span<const std::int64_t> counts,
                Device device, const DistOptions& options);
  BucketAverage(const BucketAverage&) = delete;
  BucketAverage& operator=(const BucketAverage&) = delete;
  BucketAverage(BucketAverage&&) noexcept;
  BucketAverage& operator=(BucketAverage&&) noexcept;
  ~BucketAverage();

  /** All elements of the bucket. */
  std::int64_t elements() const;

  /**
   * gradients = what docs/numerics.md calls the average. They are f32, but in the mode `full` of
   * any dtype that has an average. `steps`, how many steps there were before, decides on the
   * density of a warm-up. Collective and blocking; throws InvalidArgument before anything is sent,
   * and what collectives throw.
   */
  void average(View gradients, std::int64_t steps);

  /** What is kept of this rank: "residual" and "velocity", once needed, in the order of the bucket.
   */
  OptimizerState state() const;
  /** Goes on from a state(). Throws InvalidArgument, and changes nothing, for what is not of such a
   * bucket. */
  void load_state(const OptimizerState& state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
