// The sparse modes on CPUs: the communicator adds up sparse vectors.
#include "opt/compressors/summed_sparse.hpp"

#include <cmath>

#include "opt/compressors/density.hpp"

namespace tutti {

SparseView SummedSparseCompressor::select(const BucketView& bucket) {
  const std::int64_t count = bucket.gradients.count;
  float* kept = residual(bucket);
  const View residual = kept != nullptr ? View(kept, count, DType::f32) : View();
  const ConstView from(source(bucket), count, DType::f32);
  if (!choice().top_k) return selector_.above(from, threshold_of(choice().spars), residual);
  return selector_.top_k(from, top_k_count(choice().spars, bucket.elements), residual);
}

Traffic SummedSparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  const SparseView selected = select(bucket);  // the next bucket's takes its place
  Elements& packet = packets_.next();
  // Room for all: how many there are changes from step to step. Most pages are never touched.
  const auto most = static_cast<std::size_t>(bucket.gradients.count);
  packet.indices.reserve(most);
  packet.values.reserve(most);
  packet.indices.assign(selected.indices, selected.indices + selected.count);
  packet.values.assign(selected.values, selected.values + selected.count);
  float* velocity = this->velocity(bucket);
  for (std::size_t i = 0; i < packet.values.size(); ++i) {
    if (!std::isfinite(packet.values[i])) ++non_finite_;
    if (velocity != nullptr) velocity[packet.indices[i]] = 0.0F;
  }
  constexpr std::int64_t kEntry = sizeof(std::uint32_t) + sizeof(float);
  return {selected.count, selected.count * kEntry};
}

Event SummedSparseCompressor::exchange(const BucketView& bucket, const Stream& stream) {
  const Elements& packet = packets_.next();
  const SparseView entries{packet.indices.data(), packet.values.data(),
                           static_cast<std::int64_t>(packet.values.size())};
  Event arrival = communicator().sparse_all_reduce(entries, bucket.gradients, reduce(), stream);
  packets_.sent();
  return arrival;
}

}  // namespace tutti
