// The reducer: averages gradients over the ranks, bucket by bucket, while others are being made.
#include "tutti/reducer.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "opt/bucket.hpp"
#include "opt/exchange.hpp"
#include "tutti/error.hpp"

namespace tutti {

Reducer::Reducer(std::shared_ptr<Communicator> communicator, std::vector<ParameterRange> parameters,
                 std::int64_t bucket_elements)
    : parameters_(std::move(parameters)), taken_(parameters_.size(), false) {
  const std::vector<std::int64_t> starts = place_gradients(parameters_);
  buckets_ = cut_buckets(parameters_, starts, bucket_elements);
  arrivals_.reserve(buckets_.size());
  if (starts.back() > 0) memory_ = communicator->allocate(starts.back() * size_of(DType::f32));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].gradient = static_cast<const float*>(memory_.data()) + starts[i];
  }
  // With one bucket, or one rank, there is nothing to overlap, and no thread is needed.
  overlap_ = buckets_.size() > 1 && communicator->world_size() > 1;
  exchange_ =
      std::make_unique<Exchange>(std::move(communicator), overlap_ ? Stream::worker() : Stream());
}

Reducer::~Reducer() = default;

View Reducer::gradient(std::size_t index) const {
  const ParameterRange& parameter = parameters_[index];
  const std::int64_t start = parameter.gradient - static_cast<const float*>(memory_.data());
  return {static_cast<float*>(memory_.data()) + start, parameter.count, DType::f32};
}

void Reducer::begin() {
  std::fill(taken_.begin(), taken_.end(), false);
  all_taken_ = 0;
  bytes_sent_ = 0;
}

void Reducer::take(std::size_t index, ConstView gradient) {
  const View own = this->gradient(index);
  if (gradient.data != own.data) {
    std::memmove(own.data, gradient.data, static_cast<std::size_t>(own.bytes()));
  }
  taken_[index] = true;
  while (all_taken_ < taken_.size() && taken_[all_taken_]) ++all_taken_;
  if (!overlap_) return;
  while (arrivals_.size() + 1 < buckets_.size() && buckets_[arrivals_.size()].last <= all_taken_) {
    send_next_bucket();
  }
}

void Reducer::finish(Optimizer& optimizer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (taken_[i]) continue;
    const View own = gradient(i);
    std::memset(own.data, 0, static_cast<std::size_t>(own.bytes()));
  }
  while (arrivals_.size() < buckets_.size()) send_next_bucket();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    arrivals_[i].wait();
    optimizer.update(std::span(parameters_).subspan(bucket.first, bucket.last - bucket.first));
  }
  arrivals_.clear();
}

void Reducer::send_next_bucket() {
  const Bucket& bucket = buckets_[arrivals_.size()];
  const View packet(static_cast<float*>(memory_.data()) + bucket.begin, bucket.end - bucket.begin,
                    DType::f32);
  bytes_sent_ += packet.bytes();
  try {
    arrivals_.push_back(exchange_->average(packet));
  } catch (const CommunicationError&) {
    // The communicator refuses to go on after a failure; an earlier bucket may know which.
    for (const Event& arrival : arrivals_) arrival.wait();
    throw;
  }
}

}  // namespace tutti
