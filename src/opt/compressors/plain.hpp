// fp32: the gradients themselves travel, without a copy.
#pragma once

#include <memory>

#include "tutti/compressor.hpp"

namespace tutti {

/** The elements of a bucket are reduced where they lie; they may be of any dtype. */
class PlainCompressor final : public Compressor {
 public:
  explicit PlainCompressor(const CompressorSite& site, Reduce reduce = Reduce::average)
      : communicator_(site.communicator), reduce_(reduce) {}

  Traffic encode(const BucketView& bucket) override {
    return {bucket.elements, bucket.gradients.bytes()};
  }
  Event exchange(const BucketView& bucket, const Stream& stream) override {
    return communicator_->all_reduce(bucket.gradients, reduce_, stream);
  }
  void decode(const BucketView&) override {}

 private:
  std::shared_ptr<Communicator> communicator_;
  Reduce reduce_;
};

}  // namespace tutti
