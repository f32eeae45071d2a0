// BucketAverage: what a loop of another library's gets of its gradients, in every mode.
#include "tutti/bucket_average.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {
namespace {

class BucketAverageTest : public RankTest {};

using Counts = std::vector<std::int64_t>;

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

BucketAverage bucket_of(Communicator& communicator, const Counts& counts,
                        const DistOptions& options) {
  return {shared(communicator), counts, Device(), options};
}

DistOptions options_of(DistMode mode, double spars = 0.5) {
  DistOptions options;
  options.mode = mode;
  options.spars = spars;
  return options;
}

/** A sum over the ranks of something that grows with the rank, divided by their number. */
double average_rank(const Communicator& communicator) {
  return (communicator.world_size() - 1) / 2.0;
}

template <class T>
void expect_average(Communicator& communicator) {
  BucketAverage bucket = bucket_of(communicator, {3, 0, 2}, options_of(DistMode::full));
  EXPECT_EQ(bucket.elements(), 5);
  for (std::int64_t step = 0; step < 2; ++step) {
    std::vector<T> gradients;
    for (int i = 0; i < 5; ++i)
      gradients.push_back(static_cast<T>(4 * i + communicator.global_rank()));
    bucket.average(std::span(gradients), step);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(gradients[i],
                static_cast<T>(4.0 * static_cast<double>(i) + average_rank(communicator)));
    }
  }
  EXPECT_TRUE(bucket.state().arrays.empty());
}

TEST_F(BucketAverageTest, AveragesFloatsAndDoubles) {
  on_ranks([](Communicator& communicator) {
    expect_average<float>(communicator);
    expect_average<double>(communicator);
  });
}

TEST_F(BucketAverageTest, ClipsAndRoundsInHalf) {
  on_ranks([](Communicator& communicator) {
    for (const DType half : {DType::f16, DType::bf16}) {
      DistOptions options = options_of(DistMode::half);
      options.half = half;
      options.clipping = true;
      options.clip_value = 64.0F;
      BucketAverage bucket = bucket_of(communicator, {4}, options);
      const float infinity = std::numeric_limits<float>::infinity();
      std::vector<float> gradients{1000.0F, -1000.0F, 1.0F, infinity};
      bucket.average(std::span(gradients), 0);
      EXPECT_NEAR(gradients[0], 64.0F, 0.5F);
      EXPECT_EQ(gradients[1], -gradients[0]);
      EXPECT_NEAR(gradients[2], 1.0F, 0.01F);
      EXPECT_EQ(gradients[3], infinity);
    }
  });
}

/** One step of top-K with the two of four elements that are largest on all ranks. */
std::vector<float> step_of(BucketAverage& bucket, std::vector<float> gradients,
                           std::int64_t step = 0) {
  bucket.average(std::span(gradients), step);
  return gradients;
}

TEST_F(BucketAverageTest, KeepsWhatASparseModeDoesNotSend) {
  on_ranks([](Communicator& communicator) {
    BucketAverage bucket = bucket_of(communicator, {1, 3}, options_of(DistMode::top_k));
    EXPECT_EQ(step_of(bucket, {1, 8, -2, 9}), (std::vector<float>{0, 8, 0, 9}));
    const OptimizerState state = bucket.state();
    EXPECT_EQ(state.arrays.at("residual"), (std::vector<float>{1, 0, -2, 0}));

    EXPECT_EQ(step_of(bucket, {4, 0, -4, 0}, 1), (std::vector<float>{5, 0, -6, 0}));
    EXPECT_EQ(bucket.state().arrays.at("residual"), std::vector<float>(4));
    bucket.load_state(state);
    EXPECT_EQ(step_of(bucket, {4, 0, -4, 0}, 1), (std::vector<float>{5, 0, -6, 0}));

    OptimizerState other;
    other.arrays["residual"] = {1, 2, 3};
    EXPECT_TRUE(contains(message_of([&] { bucket.load_state(other); }),
                         "residual has 3 elements, the bucket 4"));

    BucketAverage above = bucket_of(communicator, {4}, options_of(DistMode::threshold, 3.0));
    EXPECT_EQ(step_of(above, {1, 3, -4, 2}), (std::vector<float>{0, 3, -4, 0}));
  });
}

TEST_F(BucketAverageTest, TheWarmUpGoesByTheStepsBefore) {
  on_ranks([](Communicator& communicator) {
    DistOptions options = options_of(DistMode::top_k, 0.25);
    options.sparse = {.warm_up_epochs = 1, .epoch_steps = 2};
    BucketAverage bucket = bucket_of(communicator, {4}, options);
    EXPECT_EQ(step_of(bucket, {4, 3, 2, 1}, 1), (std::vector<float>{4, 3, 0, 0}));  // half of them
    BucketAverage later = bucket_of(communicator, {4}, options);
    EXPECT_EQ(step_of(later, {4, 3, 2, 1}, 2), (std::vector<float>{4, 0, 0, 0}));
  });
}

TEST_F(BucketAverageTest, ClipsTheNormOfEachParameter) {
  on_ranks([](Communicator& communicator) {
    DistOptions options = options_of(DistMode::top_k, 1.0);
    options.sparse.clip_norm =
        5.0F * std::sqrt(static_cast<float>(communicator.world_size()));  // 5 on each rank
    BucketAverage bucket = bucket_of(communicator, {2, 2}, options);
    const std::vector<float> clipped = step_of(bucket, {30, 40, 3, 4});
    const std::vector<float> expected{3, 4, 3, 4};
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(clipped[i], expected[i], 1e-5F) << i;
  });
}

TEST_F(BucketAverageTest, RefusesWhatItCannotDo) {
  on_ranks([](Communicator& communicator) {
    const auto refusal = [&](const Counts& counts, const DistOptions& options) {
      return message_of([&] { bucket_of(communicator, counts, options); });
    };
    EXPECT_TRUE(contains(refusal({1, -2}, {}), "counts has -2, which is negative"));
    EXPECT_TRUE(contains(refusal({0}, {}), "counts has no elements"));
    EXPECT_TRUE(contains(refusal({1}, options_of(DistMode::partial)), "averages no gradients"));
    EXPECT_TRUE(contains(refusal({1}, options_of(DistMode::top_k, 2.0)), "spars"));
    EXPECT_TRUE(contains(message_of([] { BucketAverage({}, Counts{1}, Device(), {}); }),
                         "communicator is null"));

    BucketAverage bucket = bucket_of(communicator, {4}, options_of(DistMode::half));
    std::vector<float> three(3);
    EXPECT_TRUE(contains(message_of([&] { bucket.average(std::span(three), 0); }),
                         "has 3 elements, but the bucket 4"));
    std::vector<double> doubles(4);
    EXPECT_TRUE(contains(message_of([&] { bucket.average(std::span(doubles), 0); }),
                         "has dtype f64; it must be f32"));
  });
}

}  // namespace
}  // namespace tutti::test
