// The reducer: averages gradients over the ranks, bucket by bucket, while others are being made.
#include "opt/reducer.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "opt/stopwatch.hpp"

namespace tutti {
namespace {

double seconds(Exchange::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Reducer::Reducer(const std::shared_ptr<Communicator>& communicator,
                 std::vector<ParameterRange> parameters, const Stream& home,
                 std::span<const std::int64_t> row_elements)
    : parameters_(std::move(parameters)),
      alone_(communicator->world_size() == 1),
      arithmetic_(make_arithmetic(home)),
      starts_(place_gradients(parameters_)),
      taken_(parameters_.size(), false),
      exchange_(communicator, home, parameters_.size()) {
  communicator->watch(home);
  if (starts_.back() > 0) {
    memory_ = communicator->allocate(starts_.back() * size_of(DType::f32), home.device());
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].gradient = static_cast<const float*>(memory_.data()) + starts_[i];
    elements_ += parameters_[i].count;
  }
  buckets_.reserve(parameters_.size());
  tables_ = RowTables(communicator, parameters_, row_elements);
}

Reducer::~Reducer() {
  // A GPU may still work in the memory. What has failed is known already.
  try {
    arithmetic_->stream().synchronize();
  } catch (const std::exception& error) {
    log(LogLevel::debug, error.what());
  }
}

View Reducer::gradient(std::size_t index) const {
  return memory_.view(DType::f32).part(starts_[index], parameters_[index].count);
}

std::vector<Bucket> Reducer::cut(std::int64_t bucket_elements) const {
  return cut_buckets(parameters_, starts_, bucket_elements);
}

BucketView Reducer::view(const Bucket& bucket) const {
  const View gradients = memory_.view(DType::f32).part(bucket.begin, bucket.end - bucket.begin);
  return {bucket.begin, bucket.elements, gradients,
          std::span(parameters_).subspan(bucket.first, bucket.last - bucket.first)};
}

void Reducer::begin_step(Compressor& compressor) {
  compressor_ = &compressor;
  std::fill(taken_.begin(), taken_.end(), false);
  all_taken_ = 0;
  sent_ = 0;
  statistics_ = {};
  compressor.begin();
}

void Reducer::begin(Compressor& compressor, std::int64_t bucket_elements,
                    const std::optional<RowWire>& rows) {
  begin_step(compressor);
  by_rows_ = rows.has_value();
  if (bucket_elements != bucket_elements_ || by_rows_ != tables_apart_) {
    buckets_ = cut_buckets(parameters_, starts_, bucket_elements,
                           by_rows_ ? tables_.which() : std::vector<bool>(), std::move(buckets_));
    bucket_elements_ = bucket_elements;
    tables_apart_ = by_rows_;
  }
  by_rows_ ? tables_.begin(*rows) : tables_.begin_whole();
  // With one bucket, or one rank, there is nothing to overlap, and no thread is needed.
  overlap_ = buckets_.size() > 1 && !alone_;
  exchange_.begin(overlap_);
}

void Reducer::begin_locally(Compressor& compressor) {
  begin_step(compressor);
  by_rows_ = false;
  tables_.begin_whole();
  overlap_ = false;
}

void Reducer::take(std::size_t index, const Gradient& gradient) {
  if (gradient.is_whole()) {
    take_whole(index, gradient.values);
  } else {
    const Stopwatch stopwatch(statistics_.pack_seconds, exchange_.trace(), "pack");
    if (is_apart(index)) {
      tables_.take(index, gradient);
    } else {
      write_whole(gradient, this->gradient(index));
    }
  }
  taken_[index] = true;
  while (all_taken_ < taken_.size() && (taken_[all_taken_] || is_apart(all_taken_))) ++all_taken_;
  if (!overlap_) return;
  while (exchange_.started() + 1 < buckets_.size() &&
         buckets_[exchange_.started()].last <= all_taken_) {
    send_next_bucket();
  }
}

void Reducer::take_whole(std::size_t index, ConstView gradient) {
  if (is_apart(index)) tables_.take_whole(index);
  const View own = this->gradient(index);
  if (gradient.data == own.data) return;
  const Stopwatch stopwatch(statistics_.pack_seconds, exchange_.trace(), "pack");
  arithmetic_->stream().copy(own, gradient);
}

void Reducer::zero_missing() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!taken_[i] && !is_apart(i)) arithmetic_->stream().fill_with_zeros(gradient(i));
  }
}

void Reducer::send_next_bucket() {
  sending_ = true;
  const BucketView bucket = view(buckets_[exchange_.started()]);
  Traffic traffic;
  {
    const Stopwatch stopwatch(statistics_.encode_seconds, exchange_.trace(), "encode");
    traffic = compressor_->encode(bucket);
  }
  note_sent(traffic, bucket.elements);
  exchange_.start(*compressor_, bucket);
}

void Reducer::note_sent(const Traffic& traffic, std::int64_t elements) {
  statistics_.bytes_sent += traffic.bytes;
  // A threshold of zero selects what lies between gradients, too.
  sent_ += std::min(traffic.elements, elements);
  statistics_.density = static_cast<double>(sent_) / static_cast<double>(elements_);
}

void Reducer::receive(std::size_t packet, Exchange::Clock::time_point backward_end) {
  const Exchange::Arrival arrival = exchange_.wait(packet);
  statistics_.exchange_seconds += seconds(arrival.end - arrival.begin);
  const Exchange::Clock::time_point overlapped = std::min(arrival.end, backward_end);
  const double together = overlapped > arrival.begin ? seconds(overlapped - arrival.begin) : 0.0;
  statistics_.overlap_seconds += together;
  exchange_.show(packet, together);
}

void Reducer::finish(Optimizer& optimizer) {
  const Exchange::Clock::time_point backward_end = Exchange::Clock::now();
  zero_missing();
  while (exchange_.started() < buckets_.size()) send_next_bucket();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    receive(i, backward_end);
    {
      const Stopwatch stopwatch(statistics_.decode_seconds, exchange_.trace(), "decode");
      compressor_->decode(view(bucket));
    }
    const Stopwatch stopwatch(statistics_.update_seconds, exchange_.trace(), "update");
    optimizer.update(view(bucket).parameters);
  }
  if (!buckets_.empty()) statistics_.bytes_between += exchange_.bytes_between();
  if (by_rows_ && !tables_.which().empty()) {
    sending_ = true;
    note_sent({tables_.finish(*compressor_, optimizer, statistics_), 0}, elements_);
  }
  statistics_.non_finite += compressor_->take_non_finite();
  arithmetic_->stream().submit([] {}).wait();
  sending_ = false;
}

void Reducer::finish_locally(Optimizer& optimizer, const Bucket& partition) {
  zero_missing();
  sending_ = true;  // from here on the parameters differ between the ranks
  {
    const Stopwatch stopwatch(statistics_.update_seconds, exchange_.trace(), "update");
    optimizer.update(parameters_);
  }
  average_parameters(partition);
  sending_ = false;
}

void Reducer::average_parameters(const Bucket& bucket) {
  if (bucket.elements == 0) return;
  sending_ = true;
  const BucketView copies = view(bucket);
  Traffic traffic;
  {
    const Stopwatch stopwatch(statistics_.encode_seconds, exchange_.trace(), "encode");
    copy_parameters(copies, true);
    traffic = compressor_->encode(copies);
  }
  note_sent(traffic, copies.elements);
  exchange_.begin(false);
  exchange_.start(*compressor_, copies);
  receive(0, {});
  statistics_.bytes_between += exchange_.bytes_between();
  {
    const Stopwatch stopwatch(statistics_.decode_seconds, exchange_.trace(), "decode");
    compressor_->decode(copies);
    copy_parameters(copies, false);
  }
  arithmetic_->stream().submit([] {}).wait();
  sending_ = false;
}

void Reducer::copy_parameters(const BucketView& bucket, bool to_bucket) {
  pieces_.clear();
  for (const ParameterRange& range : bucket.parameters) {
    auto* gradient = const_cast<float*>(range.gradient);
    if (to_bucket) {
      pieces_.push_back({range.parameter, gradient, range.count});
    } else {
      pieces_.push_back({gradient, range.parameter, range.count});
    }
  }
  arithmetic_->copy(pieces_);
}

}  // namespace tutti
