// DistOpt on all ranks: registration, buckets, averages, and when parameters are written.
#include "tutti/dist_opt.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {
namespace {

class DistOptTest : public RankTest {};

const std::vector<std::size_t> kSizes{3, 1, 40, 0, 7, 100, 5};
constexpr std::int64_t kElements = 156;
constexpr std::int64_t kBuckets[] = {1, 7, 64, 2097152};

/** Element j of parameter i's gradient in a step, with an exact sum over 1 to 4 ranks. */
float gradient(std::size_t i, std::size_t j, int step, int rank) {
  return static_cast<float>((i + 3 * j) % 32) + static_cast<float>(step) +
         64.0F * static_cast<float>(rank);
}

/** A sum of whole numbers is exact, and then divided once. */
float average(std::size_t i, std::size_t j, int step, int ranks) {
  float sum = 0.0F;
  for (int rank = 0; rank < ranks; ++rank) sum += gradient(i, j, step, rank);
  return sum / static_cast<float>(ranks);
}

void fill_gradient(View view, std::size_t i, int step, int rank) {
  auto* elements = static_cast<float*>(view.data);
  for (std::size_t j = 0; j < static_cast<std::size_t>(view.count); ++j) {
    elements[j] = gradient(i, j, step, rank);
  }
}

/** Subtracts the averages of one step. */
void descend(Values& values, int step, int ranks) {
  for (std::size_t i = 0; i < values.arrays.size(); ++i) {
    for (std::size_t j = 0; j < values.arrays[i].size(); ++j) {
      values.arrays[i][j] -= average(i, j, step, ranks);
    }
  }
}

TEST_F(DistOptTest, RegistrationGivesEveryRankTheValuesOfRankZero) {
  on_ranks([](Communicator& communicator) {
    auto descent = std::make_shared<Descent>();
    DistOpt opt = over(communicator, descent);
    Values values(kSizes, 1.0F + static_cast<float>(communicator.global_rank()));
    const std::vector<View> gradients = opt.register_parameters(values.parameters());
    EXPECT_EQ(values, Values(kSizes, 1.0F));
    EXPECT_EQ(descent->elements(), kElements);
    ASSERT_EQ(gradients.size(), kSizes.size());
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      ASSERT_EQ(gradients[i].count, static_cast<std::int64_t>(kSizes[i]));
      EXPECT_EQ(gradients[i].dtype, DType::f32);
      for (std::size_t j = 0; j < kSizes[i]; ++j) {
        EXPECT_EQ(static_cast<const float*>(gradients[i].data)[j], 0.0F);
      }
    }
    EXPECT_EQ(opt.world_size(), communicator.world_size());
    EXPECT_EQ(opt.global_rank(), communicator.global_rank());
    EXPECT_EQ(opt.local_rank(), communicator.local_rank());
  });
}

TEST_F(DistOptTest, AveragesExactlyOnceInBucketsOfAnySize) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.global_rank();
    const int ranks = communicator.world_size();
    for (const std::int64_t bucket : kBuckets) {
      for (const bool last_first : {true, false}) {
        SCOPED_TRACE(std::to_string(bucket) + (last_first ? " last first" : " first first"));
        DistOpt opt = over(communicator, buckets_of(bucket));
        Values values(kSizes, 10.0F);
        Values expected = values;
        const std::vector<View> gradients = opt.register_parameters(values.parameters());
        for (int step = 0; step < 4; ++step) {
          opt.backward_and_update([&](const Emit& emit) {
            for (std::size_t k = 0; k < kSizes.size(); ++k) {
              const std::size_t i = last_first ? kSizes.size() - 1 - k : k;
              fill_gradient(gradients[i], i, step, rank);
              emit(values.view(i), gradients[i]);
            }
          });
          descend(expected, step, ranks);
          EXPECT_EQ(values, expected);
          EXPECT_GE(opt.bytes_per_step(), kElements * 4);
          EXPECT_LT(opt.bytes_per_step(), kElements * 4 + std::int64_t{6} * 64);
        }
        if (bucket == 1) {  // no gaps between gradients are sent
          EXPECT_EQ(opt.bytes_per_step(), kElements * 4);
        }
        EXPECT_EQ(opt.state().numbers.at("steps"), 4.0);
      }
    }
  });
}

TEST_F(DistOptTest, GradientsInBucketsAndElsewhereGiveTheSameBits) {
  on_ranks([](Communicator& communicator) {
    for (const std::int64_t bucket : {std::int64_t{64}, std::int64_t{2097152}}) {
      DistOpt direct = over(communicator, buckets_of(bucket));
      DistOpt copying = over(communicator, buckets_of(bucket));
      Values a(kSizes, 0.1F);
      Values b(kSizes, 0.1F);
      const std::vector<View> gradients = direct.register_parameters(a.parameters());
      copying.register_parameters(b.parameters());
      std::mt19937 random(static_cast<unsigned>(communicator.global_rank()));
      std::normal_distribution<float> normal;
      Values made(kSizes);
      for (int step = 0; step < 5; ++step) {
        for (auto& array : made.arrays) {
          for (float& element : array) element = normal(random);
        }
        direct.backward_and_update([&](const Emit& emit) {
          for (std::size_t i = kSizes.size(); i-- > 0;) {
            std::copy(made.arrays[i].begin(), made.arrays[i].end(),
                      static_cast<float*>(gradients[i].data));
            emit(a.view(i), gradients[i]);
          }
        });
        std::vector<float> scratch;  // one array that the model uses again and again
        copying.backward_and_update([&](const Emit& emit) {
          for (std::size_t i = kSizes.size(); i-- > 0;) {
            scratch = made.arrays[i];
            emit(b.view(i), std::span<const float>(scratch));
            std::fill(scratch.begin(), scratch.end(), NAN);
          }
        });
        EXPECT_EQ(a, b);
      }
      EXPECT_TRUE(same_everywhere(communicator, a));
    }
  });
}

TEST_F(DistOptTest, WritesNoParameterBeforeBackwardReturns) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator, buckets_of(1));
    Values values(kSizes, 5.0F);
    const Values before = values;
    opt.register_parameters(values.parameters());
    const auto backward = [&](const Emit& emit) {
      for (std::size_t i = kSizes.size(); i-- > 0;) {
        const std::vector<float> ones(kSizes[i], 1.0F);
        emit(values.view(i), std::span<const float>(ones));
        EXPECT_EQ(values, before) << "after the emission of " << Values::name(i);
      }
      // Time for the buckets under way to arrive, and to be written if that were the mistake.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(values, before);
    };
    opt.backward_and_update(backward);
    EXPECT_EQ(values, Values(kSizes, 4.0F));
  });
}

TEST_F(DistOptTest, MissingCountsAsZeroWhereAllowed) {
  on_ranks([](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.global_rank());
    const float ranks = static_cast<float>(communicator.world_size());
    for (const std::int64_t bucket : {std::int64_t{1}, std::int64_t{2097152}}) {
      DistOptions options = buckets_of(bucket);
      options.missing_as_zero = true;
      DistOpt opt = over(communicator, options);
      Values values({4, 4, 4, 4}, 100.0F);
      const std::vector<View> gradients = opt.register_parameters(values.parameters());
      // Each rank leaves out another parameter, whose storage still holds an earlier gradient.
      for (int step = 0; step < 2; ++step) {
        opt.backward_and_update([&](const Emit& emit) {
          for (std::size_t i = 0; i < 4; ++i) {
            std::fill_n(static_cast<float*>(gradients[i].data), 4, ranks);
            if (i != rank) emit(values.view(i), gradients[i]);
          }
        });
      }
      for (std::size_t i = 0; i < 4; ++i) {
        const float gone = i < static_cast<std::size_t>(ranks) ? ranks - 1.0F : ranks;
        EXPECT_EQ(values.arrays[i], std::vector<float>(4, 100.0F - 2.0F * gone)) << i;
      }
    }
  });
}

TEST_F(DistOptTest, WithoutRegistrationTheFirstPassRegisters) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.global_rank();
    for (const std::int64_t bucket : kBuckets) {
      DistOpt opt = over(communicator, buckets_of(bucket));
      Values values(kSizes, 3.0F);
      Values expected = values;
      std::vector<float> scratch;
      for (int step = 0; step < 3; ++step) {
        opt.backward_and_update([&](const Emit& emit) {
          for (std::size_t i = kSizes.size(); i-- > 0;) {
            scratch.assign(kSizes[i], 0.0F);
            fill_gradient(std::span<float>(scratch), i, step, rank);
            emit(values.view(i), std::span<const float>(scratch));
          }
        });
        descend(expected, step, communicator.world_size());
        EXPECT_EQ(values, expected);
      }
    }
  });
}

TEST_F(DistOptTest, AModelWithoutParametersTakesSteps) {
  on_ranks([](Communicator& communicator) {
    for (const bool registered : {true, false}) {
      DistOpt opt = over(communicator);
      if (registered) {
        EXPECT_TRUE(opt.register_parameters({}).empty());
      }
      for (int step = 0; step < 2; ++step) opt.backward_and_update([](const Emit&) {});
      EXPECT_EQ(opt.state().numbers.at("steps"), 2.0);
      EXPECT_EQ(opt.bytes_per_step(), 0);
    }
  });
}

TEST_F(DistOptTest, StatisticsSayWhereTheTimeWent) {
  on_ranks([](Communicator& communicator) {
    constexpr std::size_t kSize = 100'000;
    DistOpt opt = over(communicator, buckets_of(kSize));
    Values values({kSize, kSize, kSize}, 1.0F);
    opt.register_parameters(values.parameters());
    const std::vector<float> ones(kSize, 1.0F);
    const auto begin = std::chrono::steady_clock::now();
    opt.backward_and_update([&](const Emit& emit) {
      for (std::size_t i = 3; i-- > 0;) emit(values.view(i), std::span<const float>(ones));
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const StepStatistics step = opt.statistics();
    EXPECT_EQ(step.bytes_sent, 3 * kSize * sizeof(float));
    EXPECT_EQ(step.density, 1.0);
    // Gradients of the caller's own memory are packed; a full step encodes and decodes nothing.
    for (const double phase : {step.pack_seconds, step.exchange_seconds, step.update_seconds}) {
      EXPECT_GT(phase, 0.0);
      EXPECT_LE(phase, took.count());
    }
    EXPECT_GE(step.overlap_seconds, 0.0);
    EXPECT_LE(step.overlap_seconds, step.exchange_seconds);
    // On one thread one thing is done after the other.
    EXPECT_LE(step.pack_seconds + step.encode_seconds + step.decode_seconds + step.update_seconds,
              took.count());
  });
}

TEST_F(DistOptTest, TwoShareACommunicator) {
  on_ranks([](Communicator& communicator) {
    const float rank = static_cast<float>(communicator.global_rank());
    const float mean = static_cast<float>(communicator.world_size() - 1) / 2.0F;
    DistOpt one = over(communicator, buckets_of(4));
    DistOpt two = over(communicator, buckets_of(2097152));
    Values a({4, 4, 4}, 0.0F);
    Values b({9, 9}, 0.0F);
    one.register_parameters(a.parameters());
    two.register_parameters(b.parameters());
    const auto backward = [](Values& values, float value) {
      return [&values, value](const Emit& emit) {
        for (std::size_t i = 0; i < values.arrays.size(); ++i) {
          const std::vector<float> gradient(values.arrays[i].size(), value);
          emit(values.view(i), std::span<const float>(gradient));
        }
      };
    };
    for (int step = 0; step < 3; ++step) {
      one.backward_and_update(backward(a, rank));
      two.backward_and_update(backward(b, 2.0F * rank));
    }
    EXPECT_EQ(a, Values({4, 4, 4}, -3.0F * mean));
    EXPECT_EQ(b, Values({9, 9}, -6.0F * mean));
  });
}

TEST_F(DistOptTest, JoinsThroughATicketAndCanBeMoved) {
  if (!world().one_host()) GTEST_SKIP() << "a ticket admits the ranks of one host";
  on_ranks([](Communicator& communicator) {
    const UniqueId id = agree_on_ticket(communicator);
    DistOptions options = buckets_of(2);
    options.comm = short_timeout();
    DistOpt first(std::make_shared<Descent>(), id, communicator.global_rank(),
                  communicator.world_size(), options);
    EXPECT_EQ(first.world_size(), communicator.world_size());
    EXPECT_EQ(first.global_rank(), communicator.global_rank());
    Values values({2, 2, 2}, 1.0F);
    first.register_parameters(values.parameters());
    DistOpt second = std::move(first);
    const std::vector<float> ones(2, 1.0F);
    second.backward_and_update([&](const Emit& emit) {
      for (std::size_t i = 0; i < 3; ++i) emit(values.view(i), std::span<const float>(ones));
    });
    EXPECT_EQ(values, Values({2, 2, 2}, 0.0F));
  });
}

}  // namespace
}  // namespace tutti::test
