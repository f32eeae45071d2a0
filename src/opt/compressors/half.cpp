// The 16-bit modes: two bytes an element on the wire.
#include "opt/compressors/half.hpp"

#include <span>

namespace tutti {

HalfCompressor::HalfCompressor(const CompressorSite& site, DType wire, Reduce reduce)
    : communicator_(site.communicator),
      elements_(site.elements),
      wire_(wire),
      arithmetic_(make_arithmetic(site.stream)),
      // Divided before the cast: a sum of averages stays in range where one of gradients would not.
      narrowing_(1.0F / static_cast<float>(communicator_->world_size())),
      widening_(reduce.kind == ReduceKind::sum ? static_cast<float>(communicator_->world_size())
                                               : 1.0F),
      non_finite_(arithmetic_->stream()),
      memory_(communicator_, site.stream) {}

void HalfCompressor::begin() {
  packets_.clear();
  memory_.clear();
  memory_.reserve(elements_ * size_of(wire_));
}

Traffic HalfCompressor::encode(const BucketView& bucket) {
  const std::int64_t count = bucket.gradients.count;
  View& packet = packets_.next();
  packet = View(memory_.append(count * size_of(wire_)), count, wire_, arithmetic_->device());
  memory_.seal();
  const Piece piece{bucket.gradients.data, packet.data, count};
  arithmetic_->narrow(std::span(&piece, 1), wire_, {.scale = narrowing_, .limit = limit_});
  return {bucket.elements, packet.bytes()};
}

Event HalfCompressor::exchange(const BucketView&, const Stream& stream) {
  Event arrival = communicator_->all_reduce(packets_.next(), Reduce::sum, stream);
  packets_.sent();
  return arrival;
}

void HalfCompressor::decode(const BucketView& bucket) {
  const View packet = packets_.arrived();
  const Piece piece{packet.data, bucket.gradients.data, packet.count};
  arithmetic_->widen(std::span(&piece, 1), wire_, widening_, non_finite_.where());
}

}  // namespace tutti
