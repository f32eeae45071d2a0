// DistOpt's partial updates: local descent, and partitions of the parameters averaged in turn.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test::dist_opt_partial_test {
namespace {

class DistOptPartial : public RankTest {};

const std::vector<std::size_t> kSizes{4, 6, 3, 20};
// Partitions of at most 10 elements, last parameter first: {20}, {3, 6}, {4}.
constexpr std::int64_t kThreshold = 10;
const std::vector<std::vector<std::size_t>> kPartitions{{3}, {1, 2}, {0}};

/** Gradients that differ by rank, with sums that are exact. */
Backward emit_all(Values& values, float value) {
  return [&values, value](const Emit& emit) {
    for (std::size_t i = values.arrays.size(); i-- > 0;) {
      const std::vector<float> gradient(values.arrays[i].size(), value);
      emit(values.view(i), std::span<const float>(gradient));
    }
  };
}

TEST_F(DistOptPartial, DescendsLocallyAndAveragesOnePartitionAStep) {
  on_ranks([](Communicator& communicator) {
    const int ranks = communicator.world_size();
    DistOpt opt = over(communicator);
    Values values(kSizes, 100.0F);
    opt.register_parameters(values.parameters());
    // What each rank has, simulated on all of them: one number per parameter.
    std::vector<std::vector<float>> own(static_cast<std::size_t>(ranks),
                                        std::vector<float>(kSizes.size(), 100.0F));
    for (std::size_t step = 0; step < 8; ++step) {
      // The partitions stay those of the first step, whatever the later ones ask for.
      const std::int64_t threshold = step == 0 ? kThreshold : static_cast<std::int64_t>(step * 100);
      opt.backward_and_partial_update(
          emit_all(values, 12.0F * static_cast<float>(communicator.global_rank() + 1)), threshold);
      for (int rank = 0; rank < ranks; ++rank) {
        for (float& value : own[static_cast<std::size_t>(rank)]) {
          value -= 12.0F * static_cast<float>(rank + 1);
        }
      }
      std::int64_t bytes = 0;
      for (const std::size_t i : kPartitions[step % 3]) {
        float sum = 0.0F;
        for (const auto& values_of_rank : own) sum += values_of_rank[i];
        for (auto& values_of_rank : own) values_of_rank[i] = sum / static_cast<float>(ranks);
        bytes += static_cast<std::int64_t>(kSizes[i]) * 4;
      }
      const auto& mine = own[static_cast<std::size_t>(communicator.global_rank())];
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        EXPECT_EQ(values.arrays[i], std::vector<float>(kSizes[i], mine[i])) << step << " " << i;
      }
      EXPECT_GE(opt.bytes_per_step(), bytes);
      EXPECT_LE(opt.bytes_per_step(), bytes + 64);
      EXPECT_LT(opt.statistics().density, 0.7);
    }
    EXPECT_EQ(opt.state().numbers.at("steps"), 8.0);
  });
}

TEST_F(DistOptPartial, AfterACycleAtRestAllRanksAgree) {
  on_ranks([](Communicator& communicator) {
    auto sgd = std::make_shared<SGD>(SgdOptions{.lr = 0.1F, .momentum = 0.9F});
    DistOpt opt = over(communicator, sgd);
    Values values(kSizes, 1.0F);
    opt.register_parameters(values.parameters());
    const float gradient = 0.37F * static_cast<float>(communicator.global_rank() + 1);
    for (int step = 0; step < 4; ++step) {
      opt.backward_and_partial_update(emit_all(values, gradient), kThreshold);
    }
    if (communicator.world_size() > 1) {
      EXPECT_FALSE(same_everywhere(communicator, values));
    }
    sgd->set_lr(0.0F);
    for (int step = 0; step < 3; ++step) {
      opt.backward_and_partial_update(emit_all(values, gradient), kThreshold);
    }
    EXPECT_TRUE(same_everywhere(communicator, values));
  });
}

TEST_F(DistOptPartial, SynchronizeAveragesEverything) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator, buckets_of(8));
    Values values(kSizes, 0.0F);
    EXPECT_TRUE(contains(message_of([&] { opt.synchronize(); }), "no parameters are registered"));
    opt.register_parameters(values.parameters());
    for (auto& array : values.arrays) {
      array.assign(array.size(), static_cast<float>(communicator.global_rank()));
    }
    opt.synchronize();
    EXPECT_EQ(values, Values(kSizes, static_cast<float>(communicator.world_size() - 1) / 2.0F));
  });
}

TEST_F(DistOptPartial, AFailedBackwardPassChangesNothing) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values(kSizes, 7.0F);
    opt.register_parameters(values.parameters());
    const Backward failing = [&](const Emit& emit) {
      emit_all(values, 1.0F)(emit);
      throw std::runtime_error("no more images");
    };
    EXPECT_THROW(opt.backward_and_partial_update(failing, 1), std::runtime_error);
    EXPECT_EQ(values, Values(kSizes, 7.0F));
    // The failed step has fixed no partitions: this one covers everything.
    opt.backward_and_partial_update(
        emit_all(values, 2.0F * static_cast<float>(communicator.global_rank())), 1000);
    EXPECT_EQ(values, Values(kSizes, 8.0F - static_cast<float>(communicator.world_size())));
  });
}

TEST_F(DistOptPartial, AModelWithoutParametersTakesSteps) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    for (int step = 0; step < 2; ++step) {
      opt.backward_and_partial_update([](const Emit&) {});
      opt.backward_and_update_half([](const Emit&) {});
      opt.backward_and_sparse_update([](const Emit&) {});
    }
    opt.synchronize();
    EXPECT_EQ(opt.state().numbers.at("steps"), 6.0);
  });
}

}  // namespace
}  // namespace tutti::test::dist_opt_partial_test
