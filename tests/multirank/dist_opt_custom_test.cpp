// A compressor of the caller's: the one that docs/compressors.md shows, and ones that break the
// rules.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compressor/eight_bits.hpp"
#include "multirank/dist_opt_model.hpp"

namespace tutti::test::dist_opt_custom_test {
namespace {

class DistOptCustom : public RankTest {};

const std::vector<std::size_t> kSizes{30, 5, 41, 0, 64};

float gradient(int rank, int step, std::size_t i, std::size_t j) {
  return std::sin(static_cast<float>(rank + 7 * step) + 3.0F * static_cast<float>(i + 31 * j));
}

template <class C>
DistOptions through() {
  return {.mode = DistMode::custom,
          .compressor = [](const CompressorSite& site) { return std::make_unique<C>(site); }};
}

/** A model whose gradients are those above. */
struct Training {
  Training(Communicator& communicator, const DistOptions& options)
      : rank(communicator.global_rank()), opt(over(communicator, options)) {
    gradients = opt.register_parameters(values.parameters());
  }

  Backward backward(int step) {
    return [this, step](const Emit& emit) {
      for (std::size_t i = kSizes.size(); i-- > 0;) {
        auto* made = static_cast<float*>(gradients[i].data);
        for (std::size_t j = 0; j < kSizes[i]; ++j) made[j] = gradient(rank, step, i, j);
        emit(values.view(i), gradients[i]);
      }
    };
  }

  int rank;
  DistOpt opt;
  Values values{kSizes, 0.0F};
  std::vector<View> gradients;
};

/** Averages as the full mode does, and notes in which order it is called. */
class Noting : public Compressor {
 public:
  explicit Noting(CompressorSite site) : site_(std::move(site)) {}

  void begin() override { calls().clear(); }
  Traffic encode(const BucketView& bucket) override {
    calls().push_back('e');
    return {bucket.elements, bucket.gradients.bytes()};
  }
  Event exchange(const BucketView& bucket, const Stream& stream) override {
    calls().push_back('x');
    return site_.communicator->all_reduce(bucket.gradients, Reduce::average, stream);
  }
  void decode(const BucketView& bucket) override {
    calls().push_back('d');
    EXPECT_FALSE(bucket.parameters.empty());
  }

  static std::string& calls() {
    thread_local std::string calls;  // a rank is a thread
    return calls;
  }

 private:
  CompressorSite site_;
};

TEST_F(DistOptCustom, TheOneOfTheDocumentsLosesLessThanAUnitForEver) {
  on_ranks([](Communicator& communicator) {
    constexpr int kSteps = 50;
    const int ranks = communicator.world_size();
    for (const std::int64_t bucket : {1, 40, 1000}) {  // one gradient in each, some, all in one
      Training training(communicator, through<EightBits>());
      Values exact(kSizes, 0.0F);
      for (int step = 0; step < kSteps; ++step) {
        training.opt(training.backward(step), bucket);
        const StepStatistics statistics = training.opt.statistics();
        EXPECT_EQ(statistics.density, 1.0);
        EXPECT_GE(statistics.bytes_sent, 140 + 4);  // a byte an element, and of what lies between
        EXPECT_LE(statistics.bytes_sent, 158 + 4 * 4);
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          for (std::size_t j = 0; j < kSizes[i]; ++j) {
            float sum = 0.0F;
            for (int rank = 0; rank < ranks; ++rank) sum += gradient(rank, step, i, j);
            exact.arrays[i][j] -= sum / static_cast<float>(ranks);
          }
        }
      }
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        for (std::size_t j = 0; j < kSizes[i]; ++j) {
          EXPECT_NEAR(training.values.arrays[i][j], exact.arrays[i][j], 1.0F / 127);
        }
      }
      EXPECT_TRUE(same_everywhere(communicator, training.values));
    }
  });
}

TEST_F(DistOptCustom, GoesOnFromAStateToTheSameBits) {
  on_ranks([](Communicator& communicator) {
    Training whole(communicator, through<EightBits>());
    Training resumed(communicator, through<EightBits>());
    for (int step = 0; step < 2; ++step) whole.opt(whole.backward(step), 40);
    resumed.opt(resumed.backward(9), 40);  // which is forgotten
    resumed.opt.load_state(whole.opt.state());
    for (std::size_t i = 0; i < kSizes.size(); ++i) {  // in place: the model's addresses are known
      std::copy(whole.values.arrays[i].begin(), whole.values.arrays[i].end(),
                resumed.values.arrays[i].begin());
    }
    for (int step = 2; step < 5; ++step) {
      const std::int64_t bucket = step == 3 ? 1000 : 40;
      whole.opt(whole.backward(step), bucket);
      resumed.opt(resumed.backward(step), bucket);
      EXPECT_EQ(whole.values, resumed.values);
    }
  });
}

TEST_F(DistOptCustom, ItsStateIsRefusedWhereItDoesNotFit) {
  on_ranks([](Communicator& communicator) {
    Training training(communicator, through<EightBits>());
    training.opt(training.backward(0));
    const OptimizerState state = training.opt.state();
    EXPECT_EQ(state.arrays.at("dist.custom.lost").size(), 140U);
    EXPECT_EQ(state.numbers.at("dist.rank"), communicator.global_rank());
    const auto refusal = [&](const OptimizerState& wrong) {
      return message_of([&] { training.opt.load_state(wrong); });
    };
    OptimizerState other = state;
    other.numbers.erase("dist.rank");
    EXPECT_EQ(refusal(other),
              "the state has no number 'dist.rank', though it holds what belongs to a rank");
    other = state;
    other.arrays["dist.custom.lost"].pop_back();
    EXPECT_EQ(refusal(other),
              "the state's array 'dist.custom.lost' has 139 elements, but the parameter space has "
              "140");
    EXPECT_EQ(training.opt.state().arrays, state.arrays);

    Training without(communicator, {});
    EXPECT_EQ(message_of([&] { without.opt.load_state(state); }),
              "the state has an array 'dist.custom.lost', which DistOpt does not know");
    Training forgetful(communicator, through<Noting>());
    EXPECT_EQ(message_of([&] { forgetful.opt.load_state(state); }),
              "the state has an array 'lost', which the compressor does not know");
  });
}

TEST_F(DistOptCustom, EncodesExchangesAndDecodesEachBucketInOrder) {
  on_ranks([](Communicator& communicator) {
    Training custom(communicator, through<Noting>());
    Training full(communicator, {});
    for (const auto& [bucket, calls] :
         {std::pair(1, "exexexexdddd"), std::pair(80, "exexdd"), std::pair(1000, "exd")}) {
      custom.opt(custom.backward(bucket), bucket);
      full.opt(full.backward(bucket), bucket);
      EXPECT_EQ(Noting::calls(), calls);
      EXPECT_EQ(custom.values, full.values);
      EXPECT_EQ(custom.opt.bytes_per_step(), full.opt.bytes_per_step());
    }
    EXPECT_FALSE(custom.opt.state().numbers.contains("dist.rank")) << "it keeps nothing";
  });
}

TEST_F(DistOptCustom, CanFollowOtherModes) {
  on_ranks([](Communicator& communicator) {
    DistOptions options = through<Noting>();
    options.mode = DistMode::half;
    Training training(communicator, options);
    Training full(communicator, {});
    training.opt.backward_and_custom_update(training.backward(0), 40);
    full.opt.backward_and_update(full.backward(0), 40);
    EXPECT_EQ(training.values, full.values);
    training.opt(training.backward(1));
    EXPECT_EQ(training.opt.bytes_per_step(), 2 * 158);
  });
}

/** Fails in the second bucket of a step. */
class Failing final : public Noting {
 public:
  using Noting::Noting;
  Traffic encode(const BucketView& bucket) override {
    if (++encoded_ == 2) throw std::runtime_error("no code for that");
    return Noting::encode(bucket);
  }

 private:
  int encoded_ = 0;
};

TEST_F(DistOptCustom, WhatItThrowsEndsTheStepOnAllRanks) {
  on_ranks([](Communicator& communicator) {
    // Who has the parameters may fail while another still gets them, and then hears of it there.
    std::optional<Training> training;
    const std::string first = message_of<std::exception>([&] {
      training.emplace(communicator, through<Failing>());
      training->opt(training->backward(0), 1);
    });
    EXPECT_TRUE(contains(first, "no code for that")) << first;
    if (!training) return;
    const std::string second =
        message_of<CommunicationError>([&] { training->opt(training->backward(0), 1); });
    EXPECT_TRUE(contains(second, "an earlier step of this DistOpt failed half-way: ")) << second;
    EXPECT_TRUE(contains(second, "no code for that")) << second;
  });
}

/** Keeps an array that belongs to no elements. */
class Mistaken final : public Noting {
 public:
  using Noting::Noting;
  OptimizerState state() const override { return {{{"few", {1.0F}}}, {}}; }
};

TEST_F(DistOptCustom, RefusesWhatCannotBe) {
  on_ranks([](Communicator& communicator) {
    EXPECT_EQ(message_of([&] { over(communicator, {.mode = DistMode::custom}); }),
              "DistOpt: DistOptions::compressor is empty, so there is none to use");
    Training without(communicator, {});
    EXPECT_EQ(
        message_of([&] { without.opt.backward_and_custom_update(without.backward(0)); }),
        "backward_and_custom_update: DistOptions::compressor is empty, so there is none to use");
    EXPECT_EQ(message_of([&] { without.opt.backward_and_custom_update({}, 0); }),
              "backward_and_custom_update: threshold is 0; it must be at least 1");

    Training nothing(communicator, {.mode = DistMode::custom,
                                    .compressor = [](const CompressorSite&) { return nullptr; }});
    EXPECT_EQ(message_of([&] { nothing.opt(nothing.backward(0)); }),
              "DistOptions::compressor has made no compressor");

    Training mistaken(communicator, through<Mistaken>());
    mistaken.opt(mistaken.backward(0));
    EXPECT_EQ(
        message_of([&] { mistaken.opt.state(); }),
        "the compressor's array 'few' has 1 elements, but the memory of all gradients has 160");
  });
}

}  // namespace
}  // namespace tutti::test::dist_opt_custom_test
