// The compressors of DistOpt's modes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"
#include "tutti/select.hpp"

namespace tutti {

/** fp32: the gradients themselves travel, without a copy. */
class FloatCompressor final : public Compressor {
 public:
  Packet encode(const BucketView& bucket) override { return {bucket.gradients, Reduce::average}; }
  std::int64_t decode(const BucketView&) override { return 0; }
};

/**
 * f16 or bf16: what travels is clip(gradient) / ranks, rounded; it is summed in float. Elements
 * that are not finite are not clipped, and are counted in the average.
 */
class HalfCompressor final : public Compressor {
 public:
  /** Collective: allocates packets for a memory of `elements` gradients. */
  HalfCompressor(Communicator& communicator, std::int64_t elements, DType wire);

  /** Clips to [-limit, limit] from the next encode() on; 0 does not clip. */
  void set_limit(float limit) { limit_ = limit; }

  Packet encode(const BucketView& bucket) override;
  std::int64_t decode(const BucketView& bucket) override;

 private:
  View packet(const BucketView& bucket) const;

  Buffer memory_;  // symmetric; the packet of a bucket is where the bucket is among the gradients
  DType wire_;
  float scale_;
  float limit_ = 0.0F;
};

/** Which elements of a bucket are sent. */
struct SparseChoice {
  bool top_k = false;
  double spars = 0.05;  ///< the fraction sent with top_k, otherwise the least magnitude
  bool correct = true;  ///< keep the others in the residual
  float momentum = 0.0F;
  float norm_limit = 0.0F;  ///< of each parameter's gradient; 0: none
};

/**
 * Some elements of a bucket. What it remembers belongs to elements of the memory of gradients, so
 * that it does not depend on the buckets.
 */
class SparseCompressor final : public Compressor {
 public:
  /** For a memory of `elements` gradients; remembers nothing yet. */
  explicit SparseCompressor(std::int64_t elements);

  /** From the next encode() on. Allocates what the choice has to remember. */
  void choose(const SparseChoice& choice);
  /** What was not sent yet, and the corrected momentum; empty until needed. */
  std::vector<float>& residual() { return residual_; }
  std::vector<float>& velocity() { return velocity_; }

  Packet encode(const BucketView& bucket) override;
  std::int64_t decode(const BucketView& bucket) override;

 private:
  void accumulate(const BucketView& bucket);
  SparseView select(const BucketView& bucket);
  SparseView keep(SparseView selected, std::int64_t begin);

  std::int64_t elements_;
  SparseChoice choice_;
  Selector selector_;
  std::vector<float> residual_;
  std::vector<float> velocity_;
  // The packets, each from where its bucket starts; most pages are never touched.
  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  std::int64_t non_finite_ = 0;  // of the packets since the last decode()
};

}  // namespace tutti
