// The 16-bit modes: two bytes an element on the wire.
#include "communicator/cpu/kernels.hpp"
#include "opt/compressors.hpp"

namespace tutti {

HalfCompressor::HalfCompressor(Communicator& communicator, std::int64_t elements, DType wire)
    : wire_(wire), scale_(1.0F / static_cast<float>(communicator.world_size())) {
  if (elements > 0) memory_ = communicator.allocate(elements * size_of(wire));
}

View HalfCompressor::packet(const BucketView& bucket) const {
  const View all(memory_.data(), memory_.bytes() / size_of(wire_), wire_);
  return all.part(bucket.begin, bucket.gradients.count);
}

Packet HalfCompressor::encode(const BucketView& bucket) {
  const View packet = this->packet(bucket);
  // Divided before the cast: a sum of averages stays in range where a sum of gradients would not.
  cpu::narrow(static_cast<const float*>(bucket.gradients.data), packet.data, packet.count, wire_,
              {.scale = scale_, .limit = limit_});
  return {packet, Reduce::sum};
}

std::int64_t HalfCompressor::decode(const BucketView& bucket) {
  const View packet = this->packet(bucket);
  return cpu::widen(packet.data, static_cast<float*>(bucket.gradients.data), packet.count, wire_,
                    1.0F);
}

}  // namespace tutti
