// The sparse modes on CPUs: the communicator adds up sparse vectors.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "opt/compressors/packet_queue.hpp"
#include "opt/compressors/sparse.hpp"
#include "tutti/select.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

class SummedSparseCompressor final : public SparseCompressor {
 public:
  explicit SummedSparseCompressor(const CompressorSite& site, Reduce reduce = Reduce::average)
      : SparseCompressor(site, reduce) {}

  void begin() override { packets_.clear(); }
  Traffic encode(const BucketView& bucket) override;
  Event exchange(const BucketView& bucket, const Stream& stream) override;
  void decode(const BucketView&) override { packets_.arrived(); }
  std::int64_t take_non_finite() override { return std::exchange(non_finite_, 0); }

 private:
  struct Elements {
    std::vector<std::uint32_t> indices;
    std::vector<float> values;
  };

  SparseView select(const BucketView& bucket);

  Selector selector_;
  PacketQueue<Elements> packets_;
  std::int64_t non_finite_ = 0;
};

}  // namespace tutti
