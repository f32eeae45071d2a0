// The sparse modes on GPUs: all entries go to all ranks, and the CPU looks at none of them.
#pragma once

#include <cstdint>
#include <optional>

#include "device/device_memory.hpp"
#include "opt/compressors/gathered_sum.hpp"
#include "opt/compressors/packet_queue.hpp"
#include "opt/compressors/sparse.hpp"

namespace tutti {

class GatheredSparseCompressor final : public SparseCompressor {
 public:
  explicit GatheredSparseCompressor(const CompressorSite& site, Reduce reduce = Reduce::average)
      : SparseCompressor(site, reduce), non_finite_(arithmetic().stream()) {}

  void begin() override { sums_.clear(); }
  Traffic encode(const BucketView& bucket) override;
  Event exchange(const BucketView& bucket, const Stream& stream) override;
  void decode(const BucketView& bucket) override;
  std::int64_t take_non_finite() override { return non_finite_.take(); }

 private:
  Tally non_finite_;
  GatheredSum::Message selected_;  // of a bucket, by a threshold
  PacketQueue<std::optional<GatheredSum>> sums_;
};

}  // namespace tutti
