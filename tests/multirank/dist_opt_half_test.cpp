// DistOpt's 16-bit mode: exact where 16 bits are, in range, clipped, and honest about infinities.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {
namespace {

class DistOptHalf : public RankTest {};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kHalves[] = {DType::f16, DType::bf16};

DistOptions options_of(DType half) {
  DistOptions options;
  options.half = half;
  return options;
}

TEST_F(DistOptHalf, AveragesOnceInBucketsThatChangeBetweenSteps) {
  on_ranks([](Communicator& communicator) {
    const float ranks = static_cast<float>(communicator.world_size());
    const float rank = static_cast<float>(communicator.global_rank());
    for (const DType half : kHalves) {
      DistOpt opt = over(communicator, options_of(half));
      Values values({3, 1, 40, 0, 7, 100, 5}, 1.0F);
      Values expected = values;
      opt.register_parameters(values.parameters());
      int step = 0;
      for (const std::int64_t threshold : {1, 64, 7, 2097152, 1}) {
        // Every element is a whole number up to 40; divided by the ranks it may have to be rounded,
        // but so little that the rounded sum is the whole number again.
        const auto element = [&](std::size_t i, std::size_t j) {
          return static_cast<float>((i + j + static_cast<std::size_t>(step)) % 40);
        };
        opt.backward_and_update_half(
            [&](const Emit& emit) {
              for (std::size_t i = values.arrays.size(); i-- > 0;) {
                std::vector<float> gradient(values.arrays[i].size());
                for (std::size_t j = 0; j < gradient.size(); ++j) {
                  gradient[j] = element(i, j) + (2.0F * rank - ranks + 1.0F) * ranks;
                }
                emit(values.view(i), std::span<const float>(gradient));
              }
            },
            threshold);
        for (std::size_t i = 0; i < values.arrays.size(); ++i) {
          for (std::size_t j = 0; j < values.arrays[i].size(); ++j) {
            expected.arrays[i][j] -= element(i, j);
            const float tolerance = half == DType::f16 ? 0.05F : 0.4F;
            EXPECT_NEAR(values.arrays[i][j], expected.arrays[i][j], tolerance) << i << " " << j;
          }
        }
        expected = values;
        EXPECT_TRUE(same_everywhere(communicator, values));
        const StepStatistics statistics = opt.statistics();
        EXPECT_GE(statistics.bytes_sent, 156 * 2);
        EXPECT_LT(statistics.bytes_sent, 156 * 2 + 6 * 32);
        EXPECT_EQ(statistics.density, 1.0);
        EXPECT_EQ(statistics.non_finite, 0);
        ++step;
      }
    }
  });
}

/** One step of a parameter of one element per gradient; the average that arrived. */
std::vector<float> averages(Communicator& communicator, DistOpt& opt,
                            const std::vector<float>& gradients, bool clipping = false,
                            float clip_value = 100.0F) {
  Values values({gradients.size()}, 0.0F);
  opt.register_parameters(values.parameters());
  opt.backward_and_update_half(
      [&](const Emit& emit) { emit(values.view(0), std::span<const float>(gradients)); },
      std::nullopt, clipping, clip_value);
  EXPECT_TRUE(same_everywhere(communicator, values));
  for (float& value : values.arrays[0]) value = -value;
  return values.arrays[0];
}

TEST_F(DistOptHalf, ASumBeyondTheRangeOfTheTypeDoesNotOverflow) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator, options_of(DType::f16));
    // Near f16's largest number, 65504: the sum of two would be infinite.
    EXPECT_EQ(averages(communicator, opt, {40000.0F, -40000.0F}),
              (std::vector<float>{40000.0F, -40000.0F}));
    DistOpt wide = over(communicator, options_of(DType::bf16));
    EXPECT_NEAR(averages(communicator, wide, {1e30F})[0], 1e30F, 1e28F);
  });
}

TEST_F(DistOptHalf, ClipsBeforeItAverages) {
  on_ranks([](Communicator& communicator) {
    const bool last = communicator.global_rank() == communicator.world_size() - 1;
    const float ranks = static_cast<float>(communicator.world_size());
    for (const DType half : kHalves) {
      DistOpt opt = over(communicator, options_of(half));
      const float spike = last ? 5000.0F : 0.0F;
      const auto clipped = averages(communicator, opt, {spike, -spike, 300.0F, 2.0F}, true, 64.0F);
      EXPECT_NEAR(clipped[0], 64.0F / ranks, 0.1F);
      EXPECT_NEAR(clipped[1], -64.0F / ranks, 0.1F);
      EXPECT_NEAR(clipped[2], 64.0F, 0.3F);
      EXPECT_NEAR(clipped[3], 2.0F, 0.01F);
      DistOpt unlimited = over(communicator, options_of(half));
      EXPECT_NEAR(averages(communicator, unlimited, {spike})[0], 5000.0F / ranks, 15.0F);
    }
  });
}

TEST_F(DistOptHalf, WhatIsNotFiniteArrivesOnAllRanksAndIsCounted) {
  on_ranks([](Communicator& communicator) {
    const bool last = communicator.global_rank() == communicator.world_size() - 1;
    const float ranks = static_cast<float>(communicator.world_size());
    for (const DType half : kHalves) {
      for (const bool clipping : {false, true}) {
        DistOpt opt = over(communicator, options_of(half));
        std::vector<float> gradient(40, 1.0F);
        if (last) {
          gradient[3] = std::nanf("");
          gradient[20] = -kInf;
        }
        gradient[39] = half == DType::f16 ? 1e6F * ranks : 1.0F;  // beyond f16, unless clipped
        const auto arrived = averages(communicator, opt, gradient, clipping);
        EXPECT_TRUE(std::isnan(arrived[3]));
        EXPECT_EQ(arrived[20], -kInf);
        EXPECT_TRUE(std::isfinite(arrived[4]));
        const bool overflow = half == DType::f16 && !clipping;
        EXPECT_EQ(std::isfinite(arrived[39]), !overflow);
        EXPECT_EQ(opt.statistics().non_finite, overflow ? 3 : 2);
      }
    }
  });
}

TEST_F(DistOptHalf, RefusesByNameAndValue) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2}, 1.0F);
    opt.register_parameters(values.parameters());
    const Backward never = [](const Emit&) { FAIL() << "the backward pass ran"; };
    EXPECT_EQ(message_of([&] { opt.backward_and_update_half(never, 0); }),
              "backward_and_update_half: threshold is 0; it must be at least 1");
    EXPECT_EQ(message_of([&] { opt.backward_and_update(never, -5); }),
              "backward_and_update: threshold is -5; it must be at least 1");
    EXPECT_EQ(message_of([&] { opt.backward_and_update_half(never, 1, true, -1.0F); }),
              "backward_and_update_half: clip_value is -1, but must be finite and positive");
    EXPECT_EQ(message_of([&] { over(communicator, options_of(DType::f32)); }),
              "DistOpt: half is f32; it must be f16 or bf16");
  });
}

TEST_F(DistOptHalf, SumsTravelInSixteenBits) {
  on_ranks([](Communicator& communicator) {
    const int ranks = communicator.world_size();
    const int whole = ranks * (ranks + 1) / 2;
    const float sum = static_cast<float>(whole);
    for (const DType half : kHalves) {
      DistOpt opt = over(communicator, options_of(half));
      Values values({5, 1, 300}, static_cast<float>(communicator.global_rank() + 1));
      std::vector<float> large(3, 60000.0F);  // whose sum f16 does not hold
      const std::vector<View> fused{values.view(0), values.view(1)};
      opt.all_reduce_half(values.view(2));
      opt.fused_all_reduce_half(fused, false);
      opt.all_reduce_half(std::span<float>(large));
      opt.fused_all_reduce_half(fused);
      EXPECT_TRUE(contains(message_of([&] { opt.update(values.view(0), values.view(0)); }),
                           "sums are still under way"));
      opt.wait();
      for (const std::vector<float>& array : values.arrays) {
        for (const float element : array) EXPECT_NEAR(element, sum, 0.02F * sum);
      }
      for (const float element : large) {
        EXPECT_NEAR(element / static_cast<float>(ranks), 60000.0F, 300.0F);
      }
      EXPECT_TRUE(same_everywhere(communicator, values));
    }
  });
}

TEST_F(DistOptHalf, HalfSumsRefuseWhatDoesNotFit) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({5}, 1.0F);
    const View view = values.view(0);
    std::vector<double> doubles(3);
    EXPECT_EQ(message_of([&] { opt.all_reduce_half(std::span<double>(doubles)); }),
              "all_reduce_half: tensor has dtype f64; it must be f32");
    opt.fused_all_reduce(std::span(&view, 1), false);
    EXPECT_EQ(message_of([&] { opt.fused_all_reduce_half(std::span(&view, 1), false); }),
              "fused_all_reduce_half: what was filled before is to be sent by fused_all_reduce "
              "first");
    EXPECT_EQ(message_of([&] { opt.fused_all_reduce_half(std::span(&view, 1)); }),
              "fused_all_reduce_half: nothing was filled; call it with send = false first");
    opt.fused_all_reduce(std::span(&view, 1));
    opt.wait();
    EXPECT_EQ(values, Values({5}, static_cast<float>(communicator.world_size())));
  });
}

}  // namespace
}  // namespace tutti::test
