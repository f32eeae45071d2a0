// DistOpt's all_reduce, fused_all_reduce, wait and update.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "support/data.hpp"

namespace tutti::test {
namespace {

class DistOptSums : public RankTest {};

/** 1 + 2 + ... + ranks, the sum of what rank_value() gives. */
float sum_of(const Communicator& communicator) {
  const int ranks = communicator.world_size();
  return static_cast<float>(ranks * (ranks + 1)) / 2.0F;
}
float rank_value(const Communicator& communicator) {
  return static_cast<float>(communicator.global_rank() + 1);
}

TEST_F(DistOptSums, AllReduceSumsEveryType) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    std::vector<std::vector<std::byte>> memory;
    std::vector<View> views;
    for (const DType dtype : kDTypes) {
      if (!has_reduction(dtype, Reduce::sum)) continue;
      memory.emplace_back(static_cast<std::size_t>(100 * size_of(dtype)));
      views.emplace_back(memory.back().data(), 100, dtype);
      fill(views.back(), [&](std::int64_t i) {
        return contribution(dtype, ReduceKind::sum, communicator.global_rank(), i);
      });
    }
    for (const View& view : views) opt.all_reduce(view);
    opt.wait();
    for (const View& view : views) {
      EXPECT_TRUE(holds(view, [&](std::int64_t i) {
        return reduced(view.dtype, Reduce::sum, communicator.world_size(), i);
      })) << name_of(view.dtype);
    }
    opt.wait();  // with nothing under way
  });
}

TEST_F(DistOptSums, FusedSumsComeBackWhereTheyWereFilled) {
  on_ranks([](Communicator& communicator) {
    const float value = rank_value(communicator);
    const float sum = sum_of(communicator);
    DistOpt opt = over(communicator);
    for (int round = 0; round < 3; ++round) {
      Values values({3, 0, 5, 1}, value);
      std::vector<View> all;
      for (std::size_t i = 0; i < 4; ++i) {
        all.push_back(values.view(i));
        opt.fused_all_reduce(std::span(&all.back(), 1), false);
      }
      EXPECT_EQ(values, Values({3, 0, 5, 1}, value));
      opt.fused_all_reduce(all);
      opt.wait();
      EXPECT_EQ(values, Values({3, 0, 5, 1}, sum));
    }
  });
}

TEST_F(DistOptSums, FusedSumsMayBeManyAtATimeAndOutgrowTheBuffer) {
  on_ranks([](Communicator& communicator) {
    const float value = rank_value(communicator);
    const float sum = sum_of(communicator);
    DistOpt opt = over(communicator);
    const std::vector<std::size_t> sizes{7, 40000, 1, 100000, 2, 300000};
    Values values(sizes, value);
    // Sent one by one, the next ones being filled while others travel; the last two together.
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const View view = values.view(i);
      opt.fused_all_reduce(std::span(&view, 1), false);
      if (i < 4) opt.fused_all_reduce(std::span(&view, 1), true);
    }
    const std::vector<View> rest{values.view(4), values.view(5)};
    opt.fused_all_reduce(rest);
    opt.wait();
    EXPECT_EQ(values, Values(sizes, sum));

    // What is filled when wait() is called stays filled.
    Values more({5, 6}, value);
    const View early = more.view(0);
    const View late = more.view(1);
    opt.fused_all_reduce(std::span(&early, 1), false);
    opt.all_reduce(late);
    opt.wait();
    EXPECT_EQ(more.arrays[0], std::vector<float>(5, value));
    EXPECT_EQ(more.arrays[1], std::vector<float>(6, sum));
    opt.fused_all_reduce(std::span(&early, 1), true);
    opt.wait();
    EXPECT_EQ(more.arrays[0], std::vector<float>(5, sum));
  });
}

TEST_F(DistOptSums, FusedSumsOfOtherTypes) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    std::vector<double> doubles(9, communicator.global_rank() + 1);
    std::vector<std::int64_t> longs(3, communicator.global_rank() + 1);
    const View a{std::span<double>(doubles)};
    const View b{std::span<std::int64_t>(longs)};
    opt.fused_all_reduce(std::span(&a, 1), false);
    opt.fused_all_reduce(std::span(&a, 1), true);
    opt.fused_all_reduce(std::span(&b, 1), false);
    opt.fused_all_reduce(std::span(&b, 1), true);
    opt.wait();
    EXPECT_EQ(doubles, std::vector<double>(9, static_cast<double>(sum_of(communicator))));
    EXPECT_EQ(longs, std::vector<std::int64_t>(3, static_cast<std::int64_t>(sum_of(communicator))));
  });
}

TEST_F(DistOptSums, RefusesToSendWhatWasNotFilled) {
  on_ranks([](Communicator& communicator) {
    const float value = rank_value(communicator);
    DistOpt opt = over(communicator);
    Values values({3, 4}, value);
    const std::vector<View> both{values.view(0), values.view(1)};
    const std::vector<View> swapped{both[1], both[0]};
    const std::vector<View> one{both[0]};
    EXPECT_EQ(message_of([&] { opt.fused_all_reduce(both); }),
              "fused_all_reduce: nothing was filled; call it with send = false first");
    opt.fused_all_reduce(both, false);
    EXPECT_EQ(message_of([&] { opt.fused_all_reduce(one); }),
              "fused_all_reduce: 2 tensors were filled and 1 are to be sent");
    EXPECT_TRUE(contains(message_of([&] { opt.fused_all_reduce(swapped); }),
                         "tensor #0 to be sent (4 elements of f32) is not the one that was filled "
                         "(3 elements of f32)"));
    std::vector<double> other(2);
    const View wrong{std::span<double>(other)};
    EXPECT_EQ(message_of([&] { opt.fused_all_reduce(std::span(&wrong, 1), false); }),
              "fused_all_reduce: tensor #0 has dtype f64, what was filled before it f32");
    const View null(nullptr, 5, DType::f32);
    EXPECT_TRUE(contains(message_of([&] { opt.fused_all_reduce(std::span(&null, 1), false); }),
                         "null address"));
    EXPECT_EQ(values, Values({3, 4}, value));
    opt.fused_all_reduce(both);  // the refusals have changed nothing
    opt.wait();
    EXPECT_EQ(values, Values({3, 4}, sum_of(communicator)));
    EXPECT_TRUE(contains(message_of([&] { opt.fused_all_reduce(both); }), "nothing was filled"));
  });
}

// A sum of nothing on one rank and of something on the others is a mismatch like any other.
TEST_F(DistOptSums, NoElementsOnOneRankMismatch) {
  using Start = std::function<void(DistOpt&, const View&)>;
  const Start starts[] = {
      [](DistOpt& opt, const View& view) { opt.all_reduce(view); },
      [](DistOpt& opt, const View& view) { opt.all_reduce_half(view); },
      [](DistOpt& opt, const View& view) {
        opt.fused_all_reduce(std::span(&view, 1), false);
        opt.fused_all_reduce(std::span(&view, 1), true);
      },
      [](DistOpt& opt, const View& view) {
        opt.fused_all_reduce_half(std::span(&view, 1), false);
        opt.fused_all_reduce_half(std::span(&view, 1), true);
      },
      [](DistOpt& opt, const View& view) { opt.sparsification(view, {}, 0.5, true); },
      [](DistOpt& opt, const View& view) { opt.sparsification(view, {}, 0.5, false); },
      [](DistOpt& opt, const View& view) {
        const std::array<View, 2> views{view, view};
        opt.fused_sparsification(views, {}, 0.5, false);
      },
  };
  for (const Start& start : starts) {
    SCOPED_TRACE(&start - starts);
    on_ranks([&](Communicator& communicator) {
      DistOpt opt = over(communicator);
      Values values({0, 5}, 1.0F);
      start(opt, values.view(0));  // nothing on all ranks is no mistake
      opt.wait();
      if (communicator.world_size() == 1) return;
      const bool last = communicator.global_rank() == communicator.world_size() - 1;
      EXPECT_THROW(
          {
            start(opt, values.view(last ? 0 : 1));
            opt.wait();
          },
          MismatchError);
    });
  }
}

TEST_F(DistOptSums, UpdateDividesTheSum) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({4, 4}, 10.0F);
    Values gradients({4, 4},
                     static_cast<float>(communicator.world_size()) * rank_value(communicator));
    opt.register_parameters(values.parameters());
    opt.all_reduce(gradients.view(0));
    EXPECT_EQ(message_of([&] { opt.update(values.view(1), gradients.view(1)); }),
              "update: sums are still under way; call wait() first");
    opt.wait();
    opt.update(values.view(0), gradients.view(0));
    opt.step();
    const float expected = 10.0F - sum_of(communicator);
    for (const float element : values.arrays[0]) EXPECT_FLOAT_EQ(element, expected);
    EXPECT_EQ(values.arrays[1], std::vector<float>(4, 10.0F));
    EXPECT_EQ(opt.state().numbers.at("steps"), 1.0);
    Values stranger({4}, 0.0F);
    EXPECT_TRUE(contains(message_of([&] { opt.update(stranger.view(0), gradients.view(0)); }),
                         "is not registered"));
    EXPECT_TRUE(
        contains(message_of([&] { opt.update(values.view(0), gradients.view(0).part(0, 3)); }),
                 "the gradient of parameter 'p0' has 3 elements, the parameter 4"));
    DistOpt unregistered = over(communicator);
    EXPECT_TRUE(
        contains(message_of([&] { unregistered.update(values.view(0), gradients.view(0)); }),
                 "call register_parameters()"));
  });
}

TEST_F(DistOptSums, SumsMayTravelDuringAStep) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator, buckets_of(4));
    Values values({4, 4, 4}, 1.0F);
    opt.register_parameters(values.parameters());
    std::vector<float> loss(1, rank_value(communicator));
    const std::vector<float> ones(4, 1.0F);
    opt.all_reduce(std::span<float>(loss));
    opt.backward_and_update([&](const Emit& emit) {
      for (std::size_t i = 0; i < 3; ++i) emit(values.view(i), std::span<const float>(ones));
    });
    opt.wait();
    EXPECT_EQ(loss[0], sum_of(communicator));
    EXPECT_EQ(values, Values({4, 4, 4}, 0.0F));
  });
}

}  // namespace
}  // namespace tutti::test
