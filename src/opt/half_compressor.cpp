// The 16-bit modes: two bytes an element on the wire.
#include "opt/compressors.hpp"

namespace tutti {

HalfCompressor::HalfCompressor(Communicator& communicator, std::int64_t elements, DType wire,
                               std::shared_ptr<Arithmetic> arithmetic)
    : arithmetic_(std::move(arithmetic)),
      wire_(wire),
      scale_(1.0F / static_cast<float>(communicator.world_size())),
      non_finite_(arithmetic_->stream()) {
  if (elements > 0)
    memory_ = communicator.allocate(elements * size_of(wire), arithmetic_->device());
}

View HalfCompressor::packet(const BucketView& bucket) const {
  return memory_.view(wire_).part(bucket.begin, bucket.gradients.count);
}

Packet HalfCompressor::encode(const BucketView& bucket) {
  const View packet = this->packet(bucket);
  // Divided before the cast: a sum of averages stays in range where a sum of gradients would not.
  const Piece piece{bucket.gradients.data, packet.data, packet.count};
  arithmetic_->narrow(std::span(&piece, 1), wire_, {.scale = scale_, .limit = limit_});
  return {packet, Reduce::sum};
}

void HalfCompressor::decode(const BucketView& bucket) {
  const View packet = this->packet(bucket);
  const Piece piece{packet.data, bucket.gradients.data, packet.count};
  arithmetic_->widen(std::span(&piece, 1), wire_, 1.0F, non_finite_.where());
}

}  // namespace tutti
