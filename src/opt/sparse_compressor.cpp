// The sparse modes: a few elements of each bucket travel, the others wait in the residual.
#include <algorithm>
#include <cmath>
#include <utility>

#include "communicator/cpu/kernels.hpp"
#include "opt/compressors.hpp"
#include "opt/density.hpp"

namespace tutti {

SparseCompressor::SparseCompressor(std::int64_t elements)
    : elements_(elements),
      indices_(std::make_unique_for_overwrite<std::uint32_t[]>(static_cast<std::size_t>(elements))),
      values_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements))) {}

void SparseCompressor::choose(const SparseChoice& choice) {
  const auto size = static_cast<std::size_t>(elements_);
  if (choice.correct && residual_.empty()) residual_.resize(size);
  if (choice.momentum != 0.0F && velocity_.empty()) velocity_.resize(size);
  choice_ = choice;
}

/** Clips each gradient to its norm, and replaces it by momentum where that is to be corrected. */
void SparseCompressor::accumulate(const BucketView& bucket) {
  if (choice_.norm_limit == 0.0F && choice_.momentum == 0.0F) return;
  auto* memory = static_cast<float*>(bucket.gradients.data);
  for (const ParameterRange& range : bucket.parameters) {
    float scale = 1.0F;
    if (choice_.norm_limit > 0.0F) {
      const double norm = std::sqrt(cpu::squared_norm(range.gradient, range.count));
      // What is not finite stays as it is: every rank is to see it.
      if (norm > choice_.norm_limit && std::isfinite(norm)) {
        scale = static_cast<float>(choice_.norm_limit / norm);
      }
    }
    const std::int64_t place = range.gradient - memory;
    if (choice_.momentum != 0.0F) {
      cpu::accumulate(velocity_.data() + bucket.begin + place, range.gradient, range.count,
                      choice_.momentum, scale);
    } else if (scale != 1.0F) {
      cpu::accumulate(memory + place, range.gradient, range.count, 0.0F, scale);
    }
  }
}

SparseView SparseCompressor::select(const BucketView& bucket) {
  const std::int64_t count = bucket.gradients.count;
  const View residual =
      choice_.correct ? View(residual_.data() + bucket.begin, count, DType::f32) : View();
  const ConstView from = choice_.momentum != 0.0F
                             ? ConstView(velocity_.data() + bucket.begin, count, DType::f32)
                             : ConstView(bucket.gradients);
  if (!choice_.top_k) return selector_.above(from, threshold_of(choice_.spars), residual);
  return selector_.top_k(from, top_k_count(choice_.spars, bucket.elements), residual);
}

SparseView SparseCompressor::keep(SparseView selected, std::int64_t begin) {
  std::uint32_t* indices = indices_.get() + begin;
  float* values = values_.get() + begin;
  std::copy_n(selected.indices, selected.count, indices);
  std::copy_n(selected.values, selected.count, values);
  return {indices, values, selected.count};
}

Packet SparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  const SparseView entries = keep(select(bucket), bucket.begin);
  for (std::int64_t i = 0; i < entries.count; ++i) {
    if (!std::isfinite(entries.values[i])) ++non_finite_;
  }
  if (choice_.momentum != 0.0F) {
    float* velocity = velocity_.data() + bucket.begin;
    for (std::int64_t i = 0; i < entries.count; ++i) velocity[entries.indices[i]] = 0.0F;
  }
  return {bucket.gradients, Reduce::average, entries};
}

std::int64_t SparseCompressor::decode(const BucketView&) { return std::exchange(non_finite_, 0); }

}  // namespace tutti
