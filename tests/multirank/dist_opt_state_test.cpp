// DistOpt's state: a training that was saved and loaded goes on to the same bits, in every mode.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"

namespace tutti::test::dist_opt_state_test {
namespace {

class DistOptState : public RankTest {};

const std::vector<std::size_t> kSizes{30, 5, 41, 0, 64};

/** A way to train. */
struct Mode {
  std::string name;
  std::function<void(DistOpt&, const Backward&)> step;
  SparseOptions sparse;
  bool own = false;  ///< whether ranks have states of their own
};

std::vector<Mode> modes() {
  const auto top_k = [](DistOpt& opt, const Backward& backward) {
    opt.backward_and_sparse_update(backward, 40, 0.1, true);
  };
  SparseOptions corrected;
  corrected.momentum = 0.9F;
  corrected.clip_norm = 3.0F;
  corrected.warm_up_epochs = 2;
  corrected.epoch_steps = 2;
  return {
      {"full", [](DistOpt& opt, const Backward& b) { opt.backward_and_update(b, 40); }, {}, false},
      {"half",
       [](DistOpt& opt, const Backward& b) { opt.backward_and_update_half(b, 40, true, 2.0F); },
       {},
       false},
      {"partial",
       [](DistOpt& opt, const Backward& b) { opt.backward_and_partial_update(b, 40); },
       {},
       true},
      {"top-K", top_k, {}, true},
      {"threshold",
       [](DistOpt& opt, const Backward& b) { opt.backward_and_sparse_update(b, 40, 0.9, false); },
       {},
       true},
      {"without correction",
       [](DistOpt& opt, const Backward& b) {
         opt.backward_and_sparse_update(b, 40, 0.1, true, false);
       },
       {},
       false},
      {"corrected top-K", top_k, corrected, true}};
}

/** A model with an optimiser; its gradients depend on its parameters, the step and the rank. */
class Training {
 public:
  Training(Communicator& communicator, const Mode& mode,
           const std::shared_ptr<Optimizer>& optimizer = std::make_shared<SGD>(sgd()))
      : rank_(communicator.global_rank()),
        mode_(mode),
        opt_(over(communicator, optimizer, options(mode))) {
    gradients_ = opt_.register_parameters(values.parameters());
  }

  void steps(int from, int to) {
    for (int step = from; step < to; ++step) mode_.step(opt_, backward(step));
  }
  DistOpt& opt() { return opt_; }

  Values values{kSizes, 1.0F};

  static SgdOptions sgd() { return {.lr = 0.05F, .momentum = 0.5F, .dampening = 0.1F}; }

 private:
  static DistOptions options(const Mode& mode) {
    DistOptions result;
    result.sparse = mode.sparse;
    return result;
  }

  Backward backward(int step) {
    return [this, step](const Emit& emit) {
      std::mt19937 random(static_cast<unsigned>(step * 64 + rank_));
      std::normal_distribution<float> normal;
      for (std::size_t i = kSizes.size(); i-- > 0;) {
        auto* gradient = static_cast<float*>(gradients_[i].data);
        for (std::size_t j = 0; j < kSizes[i]; ++j) {
          gradient[j] = 0.1F * values.arrays[i][j] + normal(random);
        }
        emit(values.view(i), gradients_[i]);
      }
    };
  }

  int rank_;
  Mode mode_;
  DistOpt opt_;
  std::vector<View> gradients_;
};

bool same(const OptimizerState& a, const OptimizerState& b) {
  return a.arrays == b.arrays && a.numbers == b.numbers;
}

TEST_F(DistOptState, AResumedTrainingIsTheSameToTheBit) {
  on_ranks([](Communicator& communicator) {
    for (const Mode& mode : modes()) {
      for (const int saved_after : {0, 1, 3, 5}) {
        SCOPED_TRACE(mode.name + " saved after " + std::to_string(saved_after));
        Training whole(communicator, mode);
        whole.steps(0, saved_after);
        const OptimizerState state = whole.opt().state();
        const Values saved = whole.values;
        EXPECT_EQ(state.numbers.contains("dist.rank"), mode.own && saved_after > 0);
        whole.steps(saved_after, 8);

        Training resumed(communicator, mode);
        resumed.steps(0, 2);  // of another training: what it remembers is replaced
        resumed.opt().load_state(state);
        resumed.values.arrays = saved.arrays;
        EXPECT_TRUE(same(resumed.opt().state(), state));
        resumed.steps(saved_after, 8);
        EXPECT_EQ(resumed.values, whole.values);
        EXPECT_TRUE(same(resumed.opt().state(), whole.opt().state()));
      }
    }
  });
}

TEST_F(DistOptState, OtherOptimisersResumeToTheBitAsWell) {
  using Make = std::function<std::shared_ptr<Optimizer>()>;
  const std::vector<Make> makes{
      [] { return std::make_shared<Adam>(AdamOptions{.lr = 0.05F, .weight_decay = 0.1F}); },
      [] { return std::make_shared<AdamW>(AdamWOptions{.lr = 0.05F}); },
      [] { return std::make_shared<Adagrad>(AdagradOptions{.lr = 0.05F, .lr_decay = 0.1F}); }};
  on_ranks([&](Communicator& communicator) {
    for (const Mode& mode : modes()) {
      for (std::size_t i = 0; i < makes.size(); ++i) {
        SCOPED_TRACE(mode.name + " with optimiser " + std::to_string(i));
        Training whole(communicator, mode, makes[i]());
        whole.steps(0, 3);
        const OptimizerState state = whole.opt().state();
        const Values saved = whole.values;
        whole.steps(3, 6);

        Training resumed(communicator, mode, makes[i]());
        resumed.steps(0, 2);
        resumed.opt().load_state(state);
        resumed.values.arrays = saved.arrays;
        EXPECT_TRUE(same(resumed.opt().state(), state));
        resumed.steps(3, 6);
        EXPECT_EQ(resumed.values, whole.values);
        EXPECT_TRUE(same(resumed.opt().state(), whole.opt().state()));
      }
    }
  });
}

TEST_F(DistOptState, AnotherRanksStateIsRefused) {
  on_ranks([](Communicator& communicator) {
    const int ranks = communicator.world_size();
    const int rank = communicator.global_rank();
    for (const Mode& mode : modes()) {
      if (!mode.own) continue;
      SCOPED_TRACE(mode.name);
      Training training(communicator, mode);
      training.steps(0, 2);
      const OptimizerState before = training.opt().state();
      const auto refusal = [&](OptimizerState state) {
        std::string message = message_of([&] { training.opt().load_state(state); });
        EXPECT_TRUE(same(training.opt().state(), before)) << message;
        return message;
      };
      OptimizerState other = before;
      other.numbers["dist.rank"] = rank + 1;
      EXPECT_EQ(refusal(other), "the state is of rank " + std::to_string(rank + 1) +
                                    ", and this is rank " + std::to_string(rank) +
                                    ": residuals and local momentum belong to a rank");
      other = before;
      other.numbers["dist.world_size"] = ranks + 1;
      EXPECT_TRUE(contains(refusal(other), "is of world size " + std::to_string(ranks + 1)));
      for (const char* name : {"dist.rank", "dist.world_size", "dist.layout"}) {
        other = before;
        other.numbers.erase(name);
        EXPECT_EQ(refusal(other), "the state has no number '" + std::string(name) +
                                      "', though it holds what belongs to a rank");
        other.numbers[name] = -1.0;
        EXPECT_NE(refusal(other), "");
        other.numbers[name] = std::nan("");
        EXPECT_NE(refusal(other), "");
      }
      other = before;
      other.numbers["dist.layout"] += 1.0;
      EXPECT_TRUE(contains(refusal(other), "of a model whose parameters have other sizes"));
      other = before;
      other.numbers["dist.moon"] = 1.0;
      EXPECT_EQ(refusal(other), "the state has a number 'dist.moon', which DistOpt does not know");
      other = before;
      other.arrays["dist.residual"] = {1.0F};
      EXPECT_EQ(
          refusal(other),
          "the state's array 'dist.residual' has 1 elements, but the parameter space has 140");
      other = before;
      other.numbers["dist.sparse_steps"] = 1.5;
      EXPECT_TRUE(contains(refusal(other), "'dist.sparse_steps' is 1.5, but must be a whole"));
      other = before;
      other.numbers["steps"] = -1.0;  // the wrapped optimiser's refusal changes nothing either
      EXPECT_TRUE(contains(refusal(other), "'steps' is -1"));
    }
  });
}

TEST_F(DistOptState, PartialUpdatesNeedTheirPartitions) {
  on_ranks([](Communicator& communicator) {
    const Mode mode = modes()[2];
    Training training(communicator, mode);
    training.steps(0, 2);
    OptimizerState state = training.opt().state();
    EXPECT_EQ(state.numbers.at("dist.partial_steps"), 2.0);
    EXPECT_EQ(state.numbers.at("dist.partition_elements"), 40.0);
    state.numbers.erase("dist.partition_elements");
    EXPECT_TRUE(contains(message_of([&] { training.opt().load_state(state); }),
                         "no number 'dist.partition_elements' above 0"));
  });
}

TEST_F(DistOptState, ResidualsAreInTheOrderOfTheParameters) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2, 3}, 0.0F);
    opt.register_parameters(values.parameters());
    const std::vector<float> first{1.0F, 2.0F};
    const std::vector<float> second{3.0F, 4.0F, 9.0F};
    opt.backward_and_sparse_update(
        [&](const Emit& emit) {
          emit(values.view(1), std::span<const float>(second));
          emit(values.view(0), std::span<const float>(first));
        },
        std::nullopt, 0.2, true);
    EXPECT_EQ(opt.state().arrays.at("dist.residual"),
              (std::vector<float>{1.0F, 2.0F, 3.0F, 4.0F, 0.0F}));
  });
}

}  // namespace
}  // namespace tutti::test::dist_opt_state_test
