// A compressor of one's own: a byte an element, and what that loses is kept for the next step.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tutti/compressor.hpp"

class EightBits final : public tutti::Compressor {
 public:
  explicit EightBits(const tutti::CompressorSite& site)
      : communicator_(site.communicator), ranks_(site.communicator->world_size()) {
    lost_.resize(static_cast<std::size_t>(site.elements));
    own_.resize(lost_.size());
    all_.resize(lost_.size() * static_cast<std::size_t>(ranks_));
  }

  tutti::Traffic encode(const tutti::BucketView& bucket) override {
    const std::span<float> gradients = bucket.values();
    float* const lost = lost_.data() + bucket.begin;
    std::uint8_t* const own = own_.data() + bucket.begin;
    float largest = 1e-30F;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      lost[i] += gradients[i];
      largest = std::max(largest, std::abs(lost[i]));
    }
    const float unit = largest / 127;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      own[i] = static_cast<std::uint8_t>(128 + std::round(lost[i] / unit));
      lost[i] -= unit * (static_cast<float>(own[i]) - 128);
    }
    units_[bucket.begin].assign(static_cast<std::size_t>(ranks_) + 1, unit);
    return {.elements = bucket.elements, .bytes = bucket.gradients.count + 4};
  }

  tutti::Event exchange(const tutti::BucketView& bucket, const tutti::Stream& stream) override {
    const std::span<float> units = units_[bucket.begin];
    communicator_->all_gather(units.last(1), units.first(units.size() - 1), stream);
    const std::int64_t count = bucket.gradients.count;
    const tutti::View own(own_.data() + bucket.begin, count, tutti::DType::u8);
    const tutti::View all(all_.data() + bucket.begin * ranks_, count * ranks_, tutti::DType::u8);
    return communicator_->all_gather(own, all, stream);
  }

  void decode(const tutti::BucketView& bucket) override {
    const std::span<float> average = bucket.values();
    std::fill(average.begin(), average.end(), 0.0F);
    std::vector<float> units = units_[bucket.begin];
    units.pop_back();  // this rank's, which is there twice
    const std::uint8_t* byte = all_.data() + bucket.begin * ranks_;
    for (const float unit : units) {
      for (float& element : average) element += unit * (static_cast<float>(*byte++) - 128);
    }
    for (float& element : average) element /= static_cast<float>(ranks_);
  }

  tutti::OptimizerState state() const override { return {{{"lost", lost_}}, {}}; }
  void load_state(const tutti::OptimizerState& state) override { lost_ = state.arrays.at("lost"); }

 private:
  std::shared_ptr<tutti::Communicator> communicator_;
  int ranks_;
  std::vector<float> lost_;  // elements of the memory of all gradients, as the packets
  std::vector<std::uint8_t> own_;
  std::vector<std::uint8_t> all_;
  std::map<std::int64_t, std::vector<float>> units_;  // by the bucket: of all ranks, then one's own
};
