// Averages gradients over the ranks, in the modes of DistOpt.
#include "tutti/bucket_average.hpp"

#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "opt/compressors/half.hpp"
#include "opt/compressors/plain.hpp"
#include "opt/compressors/sparse.hpp"
#include "opt/home_stream.hpp"
#include "opt/step_plan.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::string_view kName = "BucketAverage";

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) {
    if (count < 0) {
      throw InvalidArgument("BucketAverage: counts has " + std::to_string(count) +
                            ", which is negative");
    }
    sum += count;
  }
  if (sum == 0) throw InvalidArgument("BucketAverage: counts has no elements");
  return sum;
}

}  // namespace

class BucketAverage::Impl {
 public:
  Impl(std::shared_ptr<Communicator> communicator, std::span<const std::int64_t> counts,
       Device device, const DistOptions& options)
      : communicator_(std::move(communicator)),
        counts_(counts.begin(), counts.end()),
        elements_(sum_of(counts)),
        options_(options),
        plan_(plan_of(options, elements_)),
        home_(home_stream(options.stream, device)) {
    if (!communicator_) throw InvalidArgument("BucketAverage: communicator is null");
    check_options(kName, options_);
    communicator_->check_device(device);
    if (device.kind == DeviceKind::cuda) communicator_->watch(home_);
    const CompressorSite site{communicator_, elements_, home_};
    switch (plan_.mode) {
      case DistMode::full:
        compressor_ = std::make_unique<PlainCompressor>(site);
        return;
      case DistMode::half: {
        auto half = std::make_unique<HalfCompressor>(site, options_.half);
        half->set_limit(plan_.clipping ? plan_.clip_value : 0.0F);
        compressor_ = std::move(half);
        return;
      }
      case DistMode::top_k:
      case DistMode::threshold: {
        auto sparse = make_sparse_compressor(site);
        sparse_ = sparse.get();
        compressor_ = std::move(sparse);
        return;
      }
      case DistMode::partial:
      case DistMode::custom:
        break;
    }
    throw InvalidArgument("BucketAverage: the mode is that of " +
                          std::string(method_of(plan_.mode)) +
                          ", which averages no gradients by itself");
  }

  std::int64_t elements() const { return elements_; }

  void average(View gradients, std::int64_t steps) {
    check(gradients);
    if (sparse_ != nullptr) {
      sparse_->choose(sparse_choice(plan_, options_.sparse, steps, communicator_->world_size()));
    }
    const std::vector<ParameterRange> ranges = ranges_of(gradients);
    const BucketView bucket{0, elements_, gradients, ranges};
    compressor_->begin();
    compressor_->encode(bucket);
    compressor_->exchange(bucket, home_).wait();
    compressor_->decode(bucket);
    home_.synchronize();
  }

  OptimizerState state() const { return compressor_->state(); }

  void load_state(const OptimizerState& state) {
    for (const auto& [name, array] : state.arrays) {
      if (static_cast<std::int64_t>(array.size()) == elements_) continue;
      throw InvalidArgument("BucketAverage: " + name + " has " + std::to_string(array.size()) +
                            " elements, the bucket " + std::to_string(elements_));
    }
    compressor_->load_state(state);
  }

 private:
  void check(const View& gradients) const {
    const auto refuse = [](const std::string& what) {
      throw InvalidArgument("BucketAverage: gradients " + what);
    };
    if (gradients.count != elements_) {
      refuse("has " + std::to_string(gradients.count) + " elements, but the bucket " +
             std::to_string(elements_));
    }
    if (plan_.mode != DistMode::full && gradients.dtype != DType::f32) {
      refuse("has dtype " + std::string(name_of(gradients.dtype)) + "; it must be f32");
    }
    if (gradients.device != home_.device()) {
      refuse("is on " + device_text(gradients.device) + ", the bucket on " +
             device_text(home_.device()));
    }
  }

  /** Where each parameter's gradient lies, for a norm of each. */
  std::vector<ParameterRange> ranges_of(const View& gradients) const {
    std::vector<ParameterRange> ranges;
    if (sparse_ == nullptr) return ranges;
    ranges.reserve(counts_.size());
    std::int64_t begin = 0;
    for (const std::int64_t count : counts_) {
      ranges.push_back({.offset = begin,
                        .count = count,
                        .gradient = static_cast<const float*>(gradients.data) + begin});
      begin += count;
    }
    return ranges;
  }

  std::shared_ptr<Communicator> communicator_;
  std::vector<std::int64_t> counts_;
  std::int64_t elements_;
  DistOptions options_;
  StepPlan plan_;
  Stream home_;
  std::unique_ptr<Compressor> compressor_;
  SparseCompressor* sparse_ = nullptr;  // the compressor, if it is of that kind
};

BucketAverage::BucketAverage(std::shared_ptr<Communicator> communicator,
                             std::span<const std::int64_t> counts, Device device,
                             const DistOptions& options)
    : impl_(std::make_unique<Impl>(std::move(communicator), counts, device, options)) {}
BucketAverage::BucketAverage(BucketAverage&&) noexcept = default;
BucketAverage& BucketAverage::operator=(BucketAverage&&) noexcept = default;
BucketAverage::~BucketAverage() = default;

std::int64_t BucketAverage::elements() const { return impl_->elements(); }
void BucketAverage::average(View gradients, std::int64_t steps) {
  impl_->average(gradients, steps);
}
OptimizerState BucketAverage::state() const { return impl_->state(); }
void BucketAverage::load_state(const OptimizerState& state) { impl_->load_state(state); }

}  // namespace tutti
