// The sparse modes: a few elements of each bucket travel, the others wait in the residual.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/arithmetic.hpp"
#include "tutti/compressor.hpp"

namespace tutti {

/** Which elements of a bucket are sent. */
struct SparseChoice {
  bool top_k = false;
  double spars = 0.05;  ///< the fraction sent with top_k, otherwise the least magnitude
  bool correct = true;  ///< keep the others in the residual
  float momentum = 0.0F;
  float norm_limit = 0.0F;    ///< of each parameter's gradient; 0: none
  float* residual = nullptr;  ///< a caller's, of one bucket, in place of the compressor's own
};

/**
 * Some elements of a bucket. What it remembers belongs to elements of the memory of gradients, so
 * that it does not depend on the buckets.
 */
class SparseCompressor : public Compressor {
 public:
  /** Remembers nothing yet. `reduce` is the average or the sum. */
  explicit SparseCompressor(const CompressorSite& site, Reduce reduce);

  /** What encode() is to send from now on. Allocates what that has to remember. */
  void choose(const SparseChoice& choice);

  /** What was not sent yet ("residual"), and the corrected momentum ("velocity"), once needed. */
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 protected:
  Arithmetic& arithmetic() const { return *arithmetic_; }
  Communicator& communicator() const { return *communicator_; }
  const SparseChoice& choice() const { return choice_; }
  const Reduce& reduce() const { return reduce_; }
  /** Adds up what is to be selected from: source(). */
  void accumulate(const BucketView& bucket);
  /** The bucket's part of what is selected from; of the residual, and of the velocity, or null. */
  const float* source(const BucketView& bucket) const;
  float* residual(const BucketView& bucket) const;
  float* velocity(const BucketView& bucket) const;

 private:
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Arithmetic> arithmetic_;
  std::int64_t elements_;
  Reduce reduce_;
  SparseChoice choice_;
  Buffer residual_;
  Buffer velocity_;
};

/** As the device of the site does it. */
std::unique_ptr<SparseCompressor> make_sparse_compressor(const CompressorSite& site,
                                                         Reduce reduce = Reduce::average);

}  // namespace tutti
