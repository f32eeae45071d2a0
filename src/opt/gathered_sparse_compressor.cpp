// The sparse modes on GPUs: all entries go to all ranks, and the host looks at none of them.
#include <utility>

#include "opt/compressors.hpp"
#include "opt/density.hpp"

namespace tutti {

GatheredSparseCompressor::GatheredSparseCompressor(Communicator& communicator,
                                                   std::int64_t elements,
                                                   std::shared_ptr<Arithmetic> arithmetic)
    : SparseCompressor(elements, std::move(arithmetic)),
      communicator_(&communicator),
      non_finite_(this->arithmetic().stream()) {}

void GatheredSparseCompressor::choose(const SparseChoice& choice) {
  sums_.clear();  // of a step that failed
  SparseCompressor::choose(choice);
}

Packet GatheredSparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  GatheredSum sum(*communicator_, arithmetic());
  const std::int64_t count = bucket.gradients.count;
  if (choice().top_k) {
    sum.select_top_k(source(bucket), residual(bucket), count,
                     top_k_count(choice().spars, bucket.elements));
  } else {
    sum.select_above(source(bucket), residual(bucket), count, threshold_of(choice().spars));
  }
  if (float* velocity = this->velocity(bucket)) arithmetic().clear(sum.entries(), velocity);
  arithmetic().count_non_finite(sum.entries(), non_finite_.where());
  Packet packet{bucket.gradients, Reduce::average};
  packet.gathered = sum.packet();
  sums_.push_back(std::move(sum));
  return packet;
}

void GatheredSparseCompressor::decode(const BucketView& bucket) {
  const GatheredSum sum = std::move(sums_.front());
  sums_.pop_front();
  auto* sums = static_cast<float*>(bucket.gradients.data);
  sum.add_up(sums, bucket.gradients.count);
  arithmetic().divide(sums, bucket.gradients.count,
                      static_cast<float>(communicator_->world_size()));
}

}  // namespace tutti
