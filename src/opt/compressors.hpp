// The compressors of DistOpt's modes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/arithmetic.hpp"
#include "opt/device_memory.hpp"
#include "opt/gathered_sum.hpp"
#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"
#include "tutti/select.hpp"

namespace tutti {

/** fp32: the gradients themselves travel, without a copy. */
class FloatCompressor final : public Compressor {
 public:
  Packet encode(const BucketView& bucket) override { return {bucket.gradients, Reduce::average}; }
  void decode(const BucketView&) override {}
};

/**
 * f16 or bf16: what travels is clip(gradient) / ranks, rounded; it is summed in float. Elements
 * that are not finite are not clipped, and are counted in the average.
 */
class HalfCompressor final : public Compressor {
 public:
  /** Collective: allocates packets for a memory of `elements` gradients. */
  HalfCompressor(Communicator& communicator, std::int64_t elements, DType wire,
                 std::shared_ptr<Arithmetic> arithmetic);

  /** Clips to [-limit, limit] from the next encode() on; 0 does not clip. */
  void set_limit(float limit) { limit_ = limit; }

  Packet encode(const BucketView& bucket) override;
  void decode(const BucketView& bucket) override;
  std::int64_t take_non_finite() override { return non_finite_.take(); }

 private:
  View packet(const BucketView& bucket) const;

  std::shared_ptr<Arithmetic> arithmetic_;
  Buffer memory_;  // symmetric; the packet of a bucket is where the bucket is among the gradients
  DType wire_;
  float scale_;
  float limit_ = 0.0F;
  Tally non_finite_;
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
class SparseCompressor : public Compressor {
 public:
  /** For a memory of `elements` gradients; remembers nothing yet. */
  SparseCompressor(std::int64_t elements, std::shared_ptr<Arithmetic> arithmetic)
      : arithmetic_(std::move(arithmetic)), elements_(elements) {}

  /** A step begins. Allocates what the choice has to remember. */
  virtual void choose(const SparseChoice& choice);

  /** What was not sent yet, and the corrected momentum; empty until needed. */
  std::vector<float> residual() const { return remembered(residual_); }
  std::vector<float> velocity() const { return remembered(velocity_); }
  void load_residual(std::span<const float> values);
  void load_velocity(std::span<const float> values);

 protected:
  Arithmetic& arithmetic() const { return *arithmetic_; }
  const SparseChoice& choice() const { return choice_; }
  /** Adds up what is to be selected from: source(). */
  void accumulate(const BucketView& bucket);
  /** The bucket's part of what is selected from; of the residual, and of the velocity, or null. */
  const float* source(const BucketView& bucket) const;
  float* residual(const BucketView& bucket) const;
  float* velocity(const BucketView& bucket) const;

 private:
  std::vector<float> remembered(const Buffer& memory) const;

  std::shared_ptr<Arithmetic> arithmetic_;
  std::int64_t elements_;
  SparseChoice choice_;
  Buffer residual_;
  Buffer velocity_;
};

/** On CPUs: the communicator adds up sparse vectors. */
class SummedSparseCompressor final : public SparseCompressor {
 public:
  SummedSparseCompressor(std::int64_t elements, std::shared_ptr<Arithmetic> arithmetic);

  Packet encode(const BucketView& bucket) override;
  void decode(const BucketView&) override {}
  std::int64_t take_non_finite() override { return std::exchange(non_finite_, 0); }

 private:
  SparseView select(const BucketView& bucket);

  Selector selector_;
  // The packets, each from where its bucket starts; most pages are never touched.
  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  std::int64_t non_finite_ = 0;
};

/** On GPUs: every rank gets the entries of all (GatheredSum). */
class GatheredSparseCompressor final : public SparseCompressor {
 public:
  /** The communicator must live until the last step has ended. */
  GatheredSparseCompressor(Communicator& communicator, std::int64_t elements,
                           std::shared_ptr<Arithmetic> arithmetic);

  void choose(const SparseChoice& choice) override;
  Packet encode(const BucketView& bucket) override;
  void decode(const BucketView& bucket) override;
  std::int64_t take_non_finite() override { return non_finite_.take(); }

 private:
  Communicator* communicator_;
  Tally non_finite_;
  std::deque<GatheredSum> sums_;  // under way, in the order of the buckets
};

}  // namespace tutti
