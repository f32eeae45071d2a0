// What the sparse modes have in common on CPUs and GPUs: what is selected from, and the residual.
#include "opt/compressors/sparse.hpp"

#include <string>

#include "device/device_memory.hpp"
#include "opt/compressors/gathered_sparse.hpp"
#include "opt/compressors/summed_sparse.hpp"
#include "opt/optimizers/state_checks.hpp"

namespace tutti {
namespace {

float* part_of(const Buffer& memory, std::int64_t begin) {
  return static_cast<float*>(memory.data()) + begin;
}

}  // namespace

SparseCompressor::SparseCompressor(const CompressorSite& site, Reduce reduce)
    : communicator_(site.communicator),
      arithmetic_(make_arithmetic(site.stream)),
      elements_(site.elements),
      reduce_(reduce) {}

void SparseCompressor::choose(const SparseChoice& choice) {
  const Stream& stream = arithmetic_->stream();
  if (choice.correct && residual_.data() == nullptr) residual_ = zeros(stream, elements_);
  if (choice.momentum != 0.0F && velocity_.data() == nullptr) velocity_ = zeros(stream, elements_);
  choice_ = choice;
}

OptimizerState SparseCompressor::state() const {
  OptimizerState state;
  const auto add = [&](const std::string& name, const Buffer& memory) {
    if (memory.data() == nullptr) return;
    state.arrays[name] = read(arithmetic_->stream(), memory.view(DType::f32));
  };
  add("residual", residual_);
  add("velocity", velocity_);
  return state;
}

void SparseCompressor::load_state(const OptimizerState& state) {
  refuse_unknown("the compressor", state, {}, {"residual", "velocity"});
  const auto load = [&](const std::string& name, Buffer& memory) {
    const auto found = state.arrays.find(name);
    memory = found == state.arrays.end() ? Buffer() : write(arithmetic_->stream(), found->second);
  };
  load("residual", residual_);
  load("velocity", velocity_);
}

float* SparseCompressor::residual(const BucketView& bucket) const {
  if (choice_.residual != nullptr) return choice_.residual;
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

std::unique_ptr<SparseCompressor> make_sparse_compressor(const CompressorSite& site,
                                                         Reduce reduce) {
  if (site.stream.device().kind == DeviceKind::cpu) {
    return std::make_unique<SummedSparseCompressor>(site, reduce);
  }
  return std::make_unique<GatheredSparseCompressor>(site, reduce);
}

}  // namespace tutti
