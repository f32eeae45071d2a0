// Training a small network with DistOpt: N ranks against one, and a resumed run against a whole.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {
namespace {

/** A perceptron of two layers, tanh and mean squared error; gradients by hand, in double. */
class Perceptron {
 public:
  static constexpr std::size_t kIn = 6;
  static constexpr std::size_t kHidden = 9;

  Perceptron() : values_({kHidden * kIn, kHidden, kHidden, 1}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 0.4F);
    for (auto& array : values_.arrays) {
      for (float& element : array) element = normal(random);
    }
  }

  Values& values() { return values_; }

  /** The backward pass for samples [first, last) of an endless set; last layer first. */
  Backward backward(int first, int last) {
    return [this, first, last](const Emit& emit) {
      const auto& w1 = values_.arrays[0];
      const auto& b1 = values_.arrays[1];
      const auto& w2 = values_.arrays[2];
      std::vector<double> d_w1(w1.size());
      std::vector<double> d_b1(b1.size());
      std::vector<double> d_w2(w2.size());
      std::vector<double> d_b2(1);
      for (int sample = first; sample < last; ++sample) {
        const std::array<double, kIn> x = input(sample);
        std::array<double, kHidden> hidden{};
        double error = values_.arrays[3][0] - std::sin(x[0] + 2.0 * x[1] * x[2]);
        for (std::size_t h = 0; h < kHidden; ++h) {
          double sum = b1[h];
          for (std::size_t i = 0; i < kIn; ++i) sum += w1[h * kIn + i] * x[i];
          hidden[h] = std::tanh(sum);
          error += w2[h] * hidden[h];
        }
        const double d_out = 2.0 * error / (last - first);
        d_b2[0] += d_out;
        for (std::size_t h = 0; h < kHidden; ++h) {
          d_w2[h] += d_out * hidden[h];
          const double d_hidden = d_out * w2[h] * (1.0 - hidden[h] * hidden[h]);
          d_b1[h] += d_hidden;
          for (std::size_t i = 0; i < kIn; ++i) d_w1[h * kIn + i] += d_hidden * x[i];
        }
      }
      const std::array<const std::vector<double>*, 4> all{&d_w1, &d_b1, &d_w2, &d_b2};
      for (std::size_t i = all.size(); i-- > 0;) {
        const std::vector<float> gradient(all[i]->begin(), all[i]->end());
        emit(values_.view(i), std::span<const float>(gradient));
      }
    };
  }

 private:
  static std::array<double, kIn> input(int sample) {
    std::mt19937 random(static_cast<unsigned>(sample));
    std::array<double, kIn> x{};
    for (double& element : x) element = static_cast<double>(random() % 2001U) / 1000.0 - 1.0;
    return x;
  }

  Values values_;
};

constexpr int kBatch = 12;  // of all ranks together: 1 to 4 ranks have equal shards

Backward shard(Perceptron& model, Communicator& communicator, int step) {
  const int part = kBatch / communicator.world_size();
  const int first = step * kBatch + communicator.global_rank() * part;
  return model.backward(first, first + part);
}

std::shared_ptr<SGD> nesterov() {
  SgdOptions options;
  options.lr = 0.05F;
  options.momentum = 0.9F;
  options.weight_decay = 1e-4F;
  options.nesterov = true;
  return std::make_shared<SGD>(options);
}

/** ||a - b|| / ||b|| over all parameters. */
double relative_difference(const Values& a, const Values& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.arrays.size(); ++i) {
    for (std::size_t j = 0; j < a.arrays[i].size(); ++j) {
      const double x = static_cast<double>(a.arrays[i][j]);
      const double y = static_cast<double>(b.arrays[i][j]);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  return std::sqrt(difference / norm);
}

class DistOptTraining : public RankTest {};

TEST_F(DistOptTraining, RanksTogetherDoWhatOneDoesOnTheJoinedBatch) {
  on_ranks([](Communicator& communicator) {
    Perceptron alone;
    Communicator self(0, 1, UniqueId::create());
    DistOpt single = over(self, nesterov());
    single.register_parameters(alone.values().parameters());
    for (int step = 0; step < 100; ++step) single.backward_and_update(shard(alone, self, step));

    Values first_result({});
    for (const std::int64_t bucket : {1, 10, 100, 2097152}) {
      SCOPED_TRACE(bucket);
      Perceptron together;
      DistOpt opt = over(communicator, nesterov(), buckets_of(bucket));
      opt.register_parameters(together.values().parameters());
      for (int step = 0; step < 100; ++step) {
        opt.backward_and_update(shard(together, communicator, step));
      }
      EXPECT_TRUE(same_everywhere(communicator, together.values()));
      EXPECT_LE(relative_difference(together.values(), alone.values()), 1e-5);
      if (first_result.arrays.empty()) first_result = together.values();
    }
    // The bound above would mean little if training had hardly moved the parameters.
    Perceptron start;
    EXPECT_GE(relative_difference(start.values(), alone.values()), 0.1);
  });
}

TEST_F(DistOptTraining, SumsAndUpdatesByHandDoTheSame) {
  on_ranks([](Communicator& communicator) {
    Perceptron automatic;
    Perceptron by_hand;
    DistOpt one = over(communicator, nesterov());
    DistOpt two = over(communicator, nesterov());
    one.register_parameters(automatic.values().parameters());
    two.register_parameters(by_hand.values().parameters());
    for (int step = 0; step < 20; ++step) {
      one.backward_and_update(shard(automatic, communicator, step));
      // SINGA's loop: sum as gradients come, then wait, update and step.
      Values gradients({by_hand.values().arrays[0].size(), by_hand.values().arrays[1].size(),
                        by_hand.values().arrays[2].size(), by_hand.values().arrays[3].size()});
      std::size_t i = 4;
      shard(by_hand, communicator, step)([&](View, const Gradient& gradient) {
        const auto* elements = static_cast<const float*>(gradient.values.data);
        gradients.arrays[--i].assign(elements, elements + gradient.values.count);
        two.all_reduce(gradients.view(i));
      });
      two.wait();
      for (i = 0; i < 4; ++i) two.update(by_hand.values().view(i), gradients.view(i));
      two.step();
    }
    EXPECT_LE(relative_difference(by_hand.values(), automatic.values()), 1e-6);
    EXPECT_TRUE(same_everywhere(communicator, by_hand.values()));
  });
}

TEST_F(DistOptTraining, AResumedRunIsTheSameBitForBit) {
  on_ranks([](Communicator& communicator) {
    Perceptron whole;
    DistOpt opt = over(communicator, nesterov(), buckets_of(10));
    opt.register_parameters(whole.values().parameters());
    for (int step = 0; step < 10; ++step) {
      opt.backward_and_update(shard(whole, communicator, step));
    }
    const Values saved_values = whole.values();
    const OptimizerState saved = opt.state();
    for (int step = 10; step < 20; ++step) {
      opt.backward_and_update(shard(whole, communicator, step));
    }

    // State belongs to parameter elements, not to buckets: it may be loaded into others.
    for (const std::int64_t bucket : {1, 10, 2097152}) {
      Perceptron resumed;
      resumed.values() = saved_values;
      DistOpt again = over(communicator, nesterov(), buckets_of(bucket));
      again.register_parameters(resumed.values().parameters());
      again.load_state(saved);
      for (int step = 10; step < 20; ++step) {
        again.backward_and_update(shard(resumed, communicator, step));
      }
      EXPECT_EQ(resumed.values(), whole.values());
    }

    // Without its momentum the run goes elsewhere, so the comparison can fail.
    Perceptron forgetful;
    forgetful.values() = saved_values;
    DistOpt fresh = over(communicator, nesterov(), buckets_of(10));
    fresh.register_parameters(forgetful.values().parameters());
    for (int step = 10; step < 20; ++step) {
      fresh.backward_and_update(shard(forgetful, communicator, step));
    }
    EXPECT_GT(relative_difference(forgetful.values(), whole.values()), 1e-3);
  });
}

TEST_F(DistOptTraining, StateOfAnotherModelIsRefused) {
  on_ranks([](Communicator& communicator) {
    Values thirty_and_five({30, 5}, 1.0F);
    Values five_and_thirty({5, 30}, 1.0F);
    DistOpt one = over(communicator, nesterov());
    DistOpt other = over(communicator, nesterov());
    one.register_parameters(thirty_and_five.parameters());
    other.register_parameters(five_and_thirty.parameters());
    EXPECT_THROW(other.load_state(one.state()), InvalidArgument);

    Perceptron model;
    DistOpt opt = over(communicator, nesterov());
    opt.register_parameters(model.values().parameters());
    opt.backward_and_update(shard(model, communicator, 0));
    OptimizerState state = opt.state();
    ASSERT_FALSE(state.arrays.empty());
    state.arrays.begin()->second.pop_back();
    EXPECT_THROW(opt.load_state(state), InvalidArgument);
    opt.backward_and_update(shard(model, communicator, 1));
  });
}

}  // namespace
}  // namespace tutti::test
