// DistOpt's sparse modes against a plain model of them: what is sent, what is kept, what is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "multirank/sparse_model.hpp"

namespace tutti::test::dist_opt_sparse_test {
namespace {

class DistOptSparse : public RankTest {};

const std::vector<std::size_t> kSizes{30, 5, 41, 0, 64};
constexpr std::int64_t kElements = 140;
/** A threshold, and which parameters share a bucket then. */
struct Layout {
  std::int64_t threshold;
  SparseModel::Buckets buckets;
};
const std::vector<Layout> kLayouts{{1, {{4}, {2}, {1}, {0}}},
                                   {64, {{4}, {2, 1}, {0}}},
                                   {2097152, {{4, 2, 1, 0}}},
                                   {106, {{4, 2}, {1, 0}}}};

/** The gradients of all ranks in a step. */
std::vector<Values> all_gradients(int step, int ranks) {
  std::vector<Values> all(static_cast<std::size_t>(ranks), Values(kSizes));
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      all[static_cast<std::size_t>(rank)].arrays[i] = sparse_gradient(i, kSizes[i], step, rank);
    }
  }
  return all;
}

Backward emit_values(Values& parameters, const Values& gradients) {
  return [&](const Emit& emit) {
    for (std::size_t i = kSizes.size(); i-- > 0;) {
      emit(parameters.view(i), std::span<const float>(gradients.arrays[i]));
    }
  };
}

void expect_model(Communicator& communicator, bool top_k, double spars, bool correct) {
  const int ranks = communicator.world_size();
  DistOpt opt = over(communicator);
  Values values(kSizes, 0.0F);
  opt.register_parameters(values.parameters());
  SparseModel model(kSizes, ranks);
  for (int step = 0; step < 9; ++step) {
    // The layout of the buckets changes with every step.
    const Layout& layout = kLayouts[static_cast<std::size_t>(step) % kLayouts.size()];
    const std::vector<Values> gradients = all_gradients(step, ranks);
    const Values& own = gradients[static_cast<std::size_t>(communicator.global_rank())];
    opt.backward_and_sparse_update(emit_values(values, own), layout.threshold, spars, top_k,
                                   correct);
    model.step(gradients, layout.buckets, spars, top_k, correct);
    ASSERT_EQ(values, model.parameters()) << "step " << step;
    EXPECT_DOUBLE_EQ(opt.statistics().density,
                     static_cast<double>(model.sent(communicator.global_rank())) / kElements);
  }
  EXPECT_TRUE(same_everywhere(communicator, values));
}

TEST_F(DistOptSparse, TopKSendsTheLargestAndKeepsTheRest) {
  on_ranks([](Communicator& communicator) {
    for (const double spars : {0.001, 0.05, 0.3, 1.0}) {
      SCOPED_TRACE(spars);
      expect_model(communicator, true, spars, true);
    }
  });
}

TEST_F(DistOptSparse, AThresholdSendsWhatReachesItAndKeepsTheRest) {
  on_ranks([](Communicator& communicator) {
    for (const double spars : {0.0, 360.0, 540.0, 1e9}) {
      SCOPED_TRACE(spars);
      expect_model(communicator, false, spars, true);
    }
  });
}

TEST_F(DistOptSparse, WithoutCorrectionTheRestIsLost) {
  on_ranks([](Communicator& communicator) {
    expect_model(communicator, true, 0.1, false);
    expect_model(communicator, false, 300.0, false);
  });
}

TEST_F(DistOptSparse, WithAllElementsItIsTheFullStep) {
  on_ranks([](Communicator& communicator) {
    DistOpt full = over(communicator);
    DistOpt sparse = over(communicator);
    Values a(kSizes, 0.0F);
    Values b(kSizes, 0.0F);
    full.register_parameters(a.parameters());
    sparse.register_parameters(b.parameters());
    for (int step = 0; step < 3; ++step) {
      const auto gradients = all_gradients(step, communicator.world_size());
      const Values& own = gradients[static_cast<std::size_t>(communicator.global_rank())];
      full.backward_and_update(emit_values(a, own));
      sparse.backward_and_sparse_update(emit_values(b, own), std::nullopt, 1.0, true);
      EXPECT_EQ(a, b);
    }
  });
}

TEST_F(DistOptSparse, AModeThatIsAnOptionIsItsMethod) {
  static constexpr std::int64_t kBucket = 64;  // so that partial updates have several partitions
  struct Case {
    DistOptions options;
    std::function<void(DistOpt&, const Backward&)> step;
  };
  const Case cases[] = {
      {{}, [](DistOpt& opt, const Backward& b) { opt.backward_and_update(b, kBucket); }},
      {{.mode = DistMode::half, .clipping = true, .clip_value = 300.0F},
       [](DistOpt& opt, const Backward& b) {
         opt.backward_and_update_half(b, kBucket, true, 300.0F);
       }},
      {{.mode = DistMode::partial},
       [](DistOpt& opt, const Backward& b) { opt.backward_and_partial_update(b, kBucket); }},
      {{.mode = DistMode::top_k, .spars = 0.1, .corr = false},
       [](DistOpt& opt, const Backward& b) {
         opt.backward_and_sparse_update(b, kBucket, 0.1, true, false);
       }},
      {{.mode = DistMode::threshold, .spars = 360.0},
       [](DistOpt& opt, const Backward& b) { opt.backward_and_sparse_update(b, kBucket, 360.0); }}};
  on_ranks([&](Communicator& communicator) {
    std::vector<Values> results;
    for (const Case& each : cases) {
      DistOpt by_option = over(communicator, each.options);
      DistOpt by_method = over(communicator);
      Values a(kSizes, 0.0F);
      Values b(kSizes, 0.0F);
      by_option.register_parameters(a.parameters());
      by_method.register_parameters(b.parameters());
      for (int step = 0; step < 3; ++step) {
        const auto gradients = all_gradients(step, communicator.world_size());
        const Values& own = gradients[static_cast<std::size_t>(communicator.global_rank())];
        by_option(emit_values(a, own), kBucket);
        each.step(by_method, emit_values(b, own));
        EXPECT_EQ(a, b);
      }
      // One rank's partial updates are full ones.
      const bool same = communicator.world_size() == 1 && each.options.mode == DistMode::partial;
      if (!same) {
        EXPECT_EQ(std::count(results.begin(), results.end(), a), 0);
      }
      results.push_back(a);
    }
  });
}

TEST_F(DistOptSparse, OptionsOfAModeAreChecked) {
  on_ranks([](Communicator& communicator) {
    const auto refuse = [&](const DistOptions& options, const std::string& part) {
      try {
        over(communicator, options);
        ADD_FAILURE() << "not refused: " << part;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    };
    refuse({.mode = DistMode::top_k, .spars = 0.0}, "spars is 0");
    refuse({.mode = DistMode::threshold, .spars = -1.0}, "spars is -1");
    refuse({.mode = DistMode::half, .clipping = true, .clip_value = -2.0F}, "clip_value is -2");
    refuse({.mode = DistMode::top_k, .corr = false, .sparse = {.momentum = 0.9F}}, "corr is false");
  });
}

TEST_F(DistOptSparse, ModesFollowEachOtherAndTheResidualWaits) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({4}, 0.0F);
    opt.register_parameters(values.parameters());
    const auto emit = [&](const std::vector<float>& gradient) {
      return [&values, gradient](const Emit& emit_one) {
        emit_one(values.view(0), std::span<const float>(gradient));
      };
    };
    opt.backward_and_sparse_update(emit({1.0F, 2.0F, 3.0F, 4.0F}), std::nullopt, 0.25, true);
    EXPECT_EQ(values.arrays[0], (std::vector<float>{0.0F, 0.0F, 0.0F, -4.0F}));
    opt.backward_and_update(emit({1.0F, 1.0F, 1.0F, 1.0F}));
    EXPECT_EQ(values.arrays[0], (std::vector<float>{-1.0F, -1.0F, -1.0F, -5.0F}));
    opt.backward_and_sparse_update(emit({0.0F, 0.0F, 0.0F, 1.0F}), std::nullopt, 0.25, true, false);
    EXPECT_EQ(values.arrays[0], (std::vector<float>{-1.0F, -1.0F, -1.0F, -6.0F}));
    opt.backward_and_sparse_update(emit({0.0F, 0.0F, 0.0F, 0.0F}), std::nullopt, 1.0, true);
    EXPECT_EQ(values.arrays[0], (std::vector<float>{-2.0F, -3.0F, -4.0F, -6.0F}));
  });
}

TEST_F(DistOptSparse, WhatIsNotFiniteIsSentAndLeavesNothing) {
  on_ranks([](Communicator& communicator) {
    for (const float momentum : {0.0F, 0.5F}) {
      for (const bool top_k : {true, false}) {
        DistOptions options;
        options.sparse.momentum = momentum;
        DistOpt opt = over(communicator, options);
        Values values({50}, 0.0F);
        opt.register_parameters(values.parameters());
        std::vector<float> gradient(50, 1.0F);
        if (communicator.global_rank() == 0) gradient[7] = std::nanf("");
        if (communicator.global_rank() == 0) gradient[9] = std::numeric_limits<float>::infinity();
        const Backward backward = [&](const Emit& emit) {
          emit(values.view(0), std::span<const float>(gradient));
        };
        const double spars = top_k ? 0.02 : 1e6;  // fewer than those
        opt.backward_and_sparse_update(backward, std::nullopt, spars, top_k);
        EXPECT_TRUE(std::isnan(values.arrays[0][7]));
        EXPECT_TRUE(std::isinf(values.arrays[0][9]));
        EXPECT_EQ(opt.statistics().non_finite, communicator.global_rank() == 0 ? 2 : 0);
        std::fill_n(values.arrays[0].begin(), 50, 0.0F);
        std::fill(gradient.begin(), gradient.end(), 1.0F);
        opt.backward_and_sparse_update(backward, std::nullopt, 1.0, true);
        for (const float value : values.arrays[0]) EXPECT_TRUE(std::isfinite(value));
        EXPECT_EQ(opt.statistics().non_finite, 0);
      }
    }
  });
}

TEST_F(DistOptSparse, MomentumCorrectionFollowsItsFormula) {
  on_ranks([](Communicator& communicator) {
    const int ranks = communicator.world_size();
    DistOptions options;
    options.sparse.momentum = 0.5F;  // exact on these gradients
    DistOpt opt = over(communicator, options);
    Values values(kSizes, 0.0F);
    opt.register_parameters(values.parameters());
    SparseModel model(kSizes, ranks, 0.5F);
    for (int step = 0; step < 5; ++step) {
      const Layout& layout = kLayouts[static_cast<std::size_t>(step) % kLayouts.size()];
      const std::vector<Values> gradients = all_gradients(step, ranks);
      const Values& own = gradients[static_cast<std::size_t>(communicator.global_rank())];
      opt.backward_and_sparse_update(emit_values(values, own), layout.threshold, 0.1, true);
      model.step(gradients, layout.buckets, 0.1, true);
      ASSERT_EQ(values, model.parameters()) << "step " << step;
    }
  });
}

TEST_F(DistOptSparse, ClipsTheNormOfEachGradientFirst) {
  on_ranks([](Communicator& communicator) {
    const double ranks = communicator.world_size();
    for (const float momentum : {0.0F, 0.5F}) {
      DistOptions options;
      options.sparse.clip_norm = 5.0F;
      options.sparse.momentum = momentum;
      DistOpt opt = over(communicator, options);
      Values values({2, 2}, 0.0F);
      opt.register_parameters(values.parameters());
      const std::vector<float> large{30.0F, 40.0F};  // a norm of 50
      const std::vector<float> small{0.3F, 0.4F};
      opt.backward_and_sparse_update(
          [&](const Emit& emit) {
            emit(values.view(1), std::span<const float>(large));
            emit(values.view(0), std::span<const float>(small));
          },
          std::nullopt, 1.0, true);
      EXPECT_NEAR(values.arrays[1][0], -3.0 / std::sqrt(ranks), 1e-6);
      EXPECT_NEAR(values.arrays[1][1], -4.0 / std::sqrt(ranks), 1e-6);
      EXPECT_NEAR(values.arrays[0][0], -0.3, 1e-6);
      EXPECT_NEAR(values.arrays[0][1], -0.4, 1e-6);
    }
  });
}

TEST_F(DistOptSparse, TheDensityWarmsUpOverEpochs) {
  on_ranks([](Communicator& communicator) {
    DistOptions options;
    options.sparse.warm_up_epochs = 2;
    options.sparse.epoch_steps = 3;
    DistOpt opt = over(communicator, options);
    Values values({1000}, 0.0F);
    opt.register_parameters(values.parameters());
    const std::vector<float> gradient(1000, 1.0F);
    std::vector<double> densities;
    for (int step = 0; step < 8; ++step) {
      opt.backward_and_sparse_update(
          [&](const Emit& emit) { emit(values.view(0), std::span<const float>(gradient)); },
          std::nullopt, 0.001, true);
      densities.push_back(opt.statistics().density);
    }
    const std::vector<double> expected{0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(densities[i], expected[i], 0.00101) << i;  // of rounding up to an element
    }
  });
}

TEST_F(DistOptSparse, RefusesByNameAndValue) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2}, 1.0F);
    opt.register_parameters(values.parameters());
    const Backward never = [](const Emit&) { FAIL() << "the backward pass ran"; };
    const auto refused = [&](double spars, bool top_k) {
      return message_of([&] { opt.backward_and_sparse_update(never, 1, spars, top_k); });
    };
    const std::string method = "backward_and_sparse_update: spars is ";
    EXPECT_EQ(refused(0.0, true), method + "0, but must be above 0 and at most 1 for top-K");
    EXPECT_EQ(refused(1.5, true), method + "1.5, but must be above 0 and at most 1 for top-K");
    EXPECT_EQ(refused(std::nan(""), true),
              method + "nan, but must be above 0 and at most 1 for top-K");
    EXPECT_EQ(refused(-0.1, false),
              method + "-0.1, but must be finite and not negative for a threshold");
    DistOptions options;
    options.sparse.momentum = 0.9F;
    DistOpt corrected = over(communicator, options);
    EXPECT_TRUE(contains(
        message_of([&] { corrected.backward_and_sparse_update(never, 1, 0.1, true, false); }),
        "corr is false"));
    options.sparse.momentum = 1.0F;
    EXPECT_EQ(message_of([&] { over(communicator, options); }),
              "DistOpt: sparse.momentum is 1; it must be at least 0 and below 1");
    options.sparse = {};
    options.sparse.warm_up_epochs = 1;
    EXPECT_EQ(message_of([&] { over(communicator, options); }),
              "DistOpt: sparse.epoch_steps is 0; a warm-up needs at least 1");
    options.sparse = {};
    options.sparse.clip_norm = -2.0F;
    EXPECT_EQ(message_of([&] { over(communicator, options); }),
              "DistOpt: sparse.clip_norm is -2; it must be finite and not negative");
  });
}

TEST_F(DistOptSparse, SparsificationSumsWhatIsSelected) {
  on_ranks([](Communicator& communicator) {
    const float ranks = static_cast<float>(communicator.world_size());
    DistOpt opt = over(communicator);
    std::vector<float> tensor{1.0F, -3.0F, 2.0F, 0.5F};
    std::vector<float> residual{0.0F, 0.0F, 2.0F, 0.0F};
    opt.sparsification(std::span<float>(tensor), View(std::span<float>(residual)), 0.25, true);
    opt.wait();
    EXPECT_EQ(tensor, (std::vector<float>{0.0F, 0.0F, 4.0F * ranks, 0.0F}));
    EXPECT_EQ(residual, (std::vector<float>{1.0F, -3.0F, 0.0F, 0.5F}));

    Values values({2, 0, 3}, 0.0F);
    values.arrays[0] = {5.0F, 1.0F};
    values.arrays[2] = {-2.0F, 1.5F, -7.0F};
    const std::vector<View> tensors{values.view(0), values.view(1), values.view(2)};
    std::vector<float> kept(5);
    std::vector<float> single{3.0F, -0.5F};
    opt.fused_sparsification(tensors, View(std::span<float>(kept)), 2.0, false);
    opt.sparsification(std::span<float>(single), std::nullopt, 1.0, false);
    opt.wait();
    EXPECT_EQ(values.arrays[0], (std::vector<float>{5.0F * ranks, 0.0F}));
    EXPECT_EQ(values.arrays[2], (std::vector<float>{-2.0F * ranks, 0.0F, -7.0F * ranks}));
    EXPECT_EQ(kept, (std::vector<float>{0.0F, 1.0F, 0.0F, 1.5F, 0.0F}));
    EXPECT_EQ(single, (std::vector<float>{3.0F * ranks, 0.0F}));
    EXPECT_EQ(message_of([&] {
                opt.fused_sparsification(tensors, View(std::span<float>(single)), 0.5, true);
              }),
              "fused_sparsification: accumulation has 2 elements, what is to be sent 5");
    EXPECT_TRUE(
        contains(message_of([&] { opt.sparsification(values.view(0), std::nullopt, -1.0, false); }),
                 "sparsification: spars is -1"));
  });
}

}  // namespace
}  // namespace tutti::test::dist_opt_sparse_test
