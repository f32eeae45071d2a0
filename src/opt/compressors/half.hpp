// The 16-bit modes: two bytes an element on the wire.
#pragma once

#include <cstdint>
#include <memory>

#include "device/arithmetic.hpp"
#include "device/device_memory.hpp"
#include "opt/compressors/packet_queue.hpp"
#include "opt/compressors/staging.hpp"
#include "tutti/compressor.hpp"

namespace tutti {

/**
 * f16 or bf16: what travels is clip(gradient) / ranks, rounded; it is summed in float. Elements
 * that are not finite are not clipped, and are counted in what has arrived.
 */
class HalfCompressor final : public Compressor {
 public:
  /** `reduce` is the average or the sum. */
  HalfCompressor(const CompressorSite& site, DType wire, Reduce reduce = Reduce::average);

  /** Clips to [-limit, limit] from the next encode() on; 0 does not clip. */
  void set_limit(float limit) { limit_ = limit; }

  void begin() override;
  Traffic encode(const BucketView& bucket) override;
  Event exchange(const BucketView& bucket, const Stream& stream) override;
  void decode(const BucketView& bucket) override;
  std::int64_t take_non_finite() override { return non_finite_.take(); }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::int64_t elements_;  // of the memory of all gradients
  DType wire_;
  std::shared_ptr<Arithmetic> arithmetic_;
  float narrowing_;  // factors
  float widening_;
  float limit_ = 0.0F;
  Tally non_finite_;
  Staging memory_;
  PacketQueue<View> packets_;
};

}  // namespace tutti
