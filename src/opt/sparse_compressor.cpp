// The sparse modes: a few elements of each bucket travel, the others wait in the residual.
#include <algorithm>
#include <cmath>
#include <utility>

#include "opt/compressors.hpp"
#include "opt/density.hpp"

namespace tutti {
namespace {

float* part_of(const Buffer& memory, std::int64_t begin) {
  return static_cast<float*>(memory.data()) + begin;
}

}  // namespace

void SparseCompressor::choose(const SparseChoice& choice) {
  const Stream& stream = arithmetic_->stream();
  if (choice.correct && residual_.data() == nullptr) residual_ = zeros(stream, elements_);
  if (choice.momentum != 0.0F && velocity_.data() == nullptr) velocity_ = zeros(stream, elements_);
  choice_ = choice;
}

std::vector<float> SparseCompressor::remembered(const Buffer& memory) const {
  return read(arithmetic_->stream(), memory.view(DType::f32));
}

void SparseCompressor::load_residual(std::span<const float> values) {
  residual_ = write(arithmetic_->stream(), values);
}

void SparseCompressor::load_velocity(std::span<const float> values) {
  velocity_ = write(arithmetic_->stream(), values);
}

float* SparseCompressor::residual(const BucketView& bucket) const {
  return choice_.correct ? part_of(residual_, bucket.begin) : nullptr;
}

float* SparseCompressor::velocity(const BucketView& bucket) const {
  return choice_.momentum != 0.0F ? part_of(velocity_, bucket.begin) : nullptr;
}

const float* SparseCompressor::source(const BucketView& bucket) const {
  const float* velocity = this->velocity(bucket);
  return velocity != nullptr ? velocity : static_cast<const float*>(bucket.gradients.data);
}

/** Clips each gradient to its norm, and replaces it by momentum where that is to be corrected. */
void SparseCompressor::accumulate(const BucketView& bucket) {
  if (choice_.norm_limit == 0.0F && choice_.momentum == 0.0F) return;
  auto* memory = static_cast<float*>(bucket.gradients.data);
  float* sums = choice_.momentum != 0.0F ? velocity(bucket) : memory;
  for (const ParameterRange& range : bucket.parameters) {
    arithmetic_->accumulate(sums + (range.gradient - memory), range.gradient, range.count,
                            choice_.momentum, choice_.norm_limit);
  }
}

SummedSparseCompressor::SummedSparseCompressor(std::int64_t elements,
                                               std::shared_ptr<Arithmetic> arithmetic)
    : SparseCompressor(elements, std::move(arithmetic)),
      indices_(std::make_unique_for_overwrite<std::uint32_t[]>(static_cast<std::size_t>(elements))),
      values_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements))) {}

SparseView SummedSparseCompressor::select(const BucketView& bucket) {
  const std::int64_t count = bucket.gradients.count;
  float* kept = residual(bucket);
  const View residual = kept != nullptr ? View(kept, count, DType::f32) : View();
  const ConstView from(source(bucket), count, DType::f32);
  if (!choice().top_k) return selector_.above(from, threshold_of(choice().spars), residual);
  return selector_.top_k(from, top_k_count(choice().spars, bucket.elements), residual);
}

Packet SummedSparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  const SparseView selected = select(bucket);  // the next bucket's takes its place
  std::uint32_t* indices = indices_.get() + bucket.begin;
  float* values = values_.get() + bucket.begin;
  float* velocity = this->velocity(bucket);
  for (std::int64_t i = 0; i < selected.count; ++i) {
    indices[i] = selected.indices[i];
    values[i] = selected.values[i];
    if (!std::isfinite(values[i])) ++non_finite_;
    if (velocity != nullptr) velocity[indices[i]] = 0.0F;
  }
  return {bucket.gradients, Reduce::average, SparseView{indices, values, selected.count}};
}

}  // namespace tutti
