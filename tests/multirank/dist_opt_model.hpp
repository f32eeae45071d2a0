// What the tests of DistOpt share: small models, and an optimiser whose results are exact.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/world.hpp"
#include "tutti/dist_opt.hpp"

namespace tutti::test {

/** Plain descent with a learning rate of 1, exact on small whole numbers. */
class Descent final : public Optimizer {
 public:
  void resize(std::int64_t elements) override { elements_ = elements; }
  void update(std::span<const ParameterRange> ranges) override {
    for (const ParameterRange& range : ranges) {
      for (std::int64_t i = 0; i < range.count; ++i) {
        range.parameter[i] -= range.gradient_scale * range.gradient[i];
      }
    }
  }
  void step() override { ++steps_; }
  OptimizerState state() const override { return {{}, {{"steps", steps_}}}; }
  void load_state(const OptimizerState& state) override { steps_ = state.numbers.at("steps"); }

  std::int64_t elements() const { return elements_; }

 private:
  std::int64_t elements_ = 0;
  double steps_ = 0;
};

/** Parameters of given sizes, named p0, p1, ... */
struct Values {
  explicit Values(const std::vector<std::size_t>& sizes, float value = 0.0F) {
    for (const std::size_t size : sizes) arrays.emplace_back(size, value);
  }

  View view(std::size_t i) { return std::span<float>(arrays[i]); }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t i = 0; i < arrays.size(); ++i) list.push_back({view(i), name(i)});
    return list;
  }
  static std::string name(std::size_t i) {
    std::string text("p");
    return text += std::to_string(i);
  }

  friend bool operator==(const Values& a, const Values& b) { return a.arrays == b.arrays; }

  std::vector<std::vector<float>> arrays;
};

/** A DistOpt over a communicator that outlives it. */
inline DistOpt over(Communicator& communicator, std::shared_ptr<Optimizer> optimizer,
                    const DistOptions& options = {}) {
  return {std::move(optimizer), std::shared_ptr<Communicator>(&communicator, [](Communicator*) {}),
          options};
}

inline DistOpt over(Communicator& communicator, const DistOptions& options = {}) {
  return over(communicator, std::make_shared<Descent>(), options);
}

inline DistOptions buckets_of(std::int64_t elements) {
  DistOptions options;
  options.bucket_elements = elements;
  return options;
}

/** Collective: whether the values are the same on all ranks, bit for bit. */
inline ::testing::AssertionResult same_everywhere(Communicator& communicator, Values& values) {
  const auto ranks = static_cast<std::size_t>(communicator.world_size());
  for (std::size_t i = 0; i < values.arrays.size(); ++i) {
    const std::vector<float>& own = values.arrays[i];
    std::vector<float> all(own.size() * ranks);
    communicator.all_gather(std::span<const float>(own), std::span<float>(all));
    for (std::size_t rank = 0; rank < ranks && !own.empty(); ++rank) {
      if (std::memcmp(all.data() + rank * own.size(), own.data(), own.size() * 4) != 0) {
        return ::testing::AssertionFailure() << Values::name(i) << " differs between ranks " << rank
                                             << " and " << communicator.global_rank();
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/** The message of the E that `action` throws. */
template <class E = InvalidArgument, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tutti::test
