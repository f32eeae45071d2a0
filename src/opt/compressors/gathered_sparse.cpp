// The sparse modes on GPUs: all entries go to all ranks, and the CPU looks at none of them.
#include "opt/compressors/gathered_sparse.hpp"

#include "opt/compressors/density.hpp"

namespace tutti {

Traffic GatheredSparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  const std::int64_t count = bucket.gradients.count;
  std::optional<GatheredSum>& next = sums_.next();
  if (!next) next.emplace(communicator(), arithmetic());
  GatheredSum& sum = *next;
  if (choice().top_k) {
    sum.select_top_k(source(bucket), residual(bucket), count,
                     top_k_count(choice().spars, bucket.elements));
  } else {
    sum.select_above(source(bucket), residual(bucket), count, threshold_of(choice().spars),
                     selected_);
  }
  if (float* velocity = this->velocity(bucket)) arithmetic().clear(sum.entries(), velocity);
  arithmetic().count_non_finite(sum.entries(), non_finite_.where());
  return {sum.count(), sum.own().bytes()};
}

Event GatheredSparseCompressor::exchange(const BucketView&, const Stream& stream) {
  const GatheredSum& sum = *sums_.next();
  Event arrival = communicator().all_gather(sum.own(), sum.all(), stream);
  sums_.sent();
  return arrival;
}

void GatheredSparseCompressor::decode(const BucketView& bucket) {
  auto* sums = static_cast<float*>(bucket.gradients.data);
  sums_.arrived()->add_up(sums, bucket.gradients.count);
  if (reduce().kind == ReduceKind::sum) return;
  arithmetic().divide(sums, bucket.gradients.count,
                      static_cast<float>(communicator().world_size()));
}

}  // namespace tutti
