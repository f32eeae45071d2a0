// Dense parameters that are not pushed stay as they are, whatever else their server holds.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ps/job.hpp"
#include "ps/table/rules.hpp"

namespace tutti::ps::test::dense_push_test {
namespace {

constexpr std::int64_t kElements = 9;
constexpr int kParameters = 3;
constexpr int kWorkers = 2;

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{Sgd{.lr = 0.5F}, Momentum{.lr = 0.5F, .momentum = 0.75F},
                                     Adam{.lr = 0.5F}};
  return all;
}

/** Two blocks of each parameter where there are two servers, one of each on either. */
JobOptions options_of(const Rule& rule, const Mode& mode, int workers, int servers) {
  JobOptions options{.workers = workers, .servers = servers, .mode = mode};
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    DenseParameter one{std::to_string(parameter), {kElements}, rule, {}};
    for (std::int64_t i = 0; i < kElements; ++i)
      one.initial.push_back(static_cast<float>(i + parameter));
    options.dense.push_back(one);
  }
  return options;
}

std::vector<float> gradient_of(int parameter, int step) {
  std::vector<float> gradient;
  const std::int64_t shift = std::int64_t{3} * parameter + std::int64_t{5} * step;
  for (std::int64_t i = 0; i < kElements; ++i) {
    gradient.push_back(static_cast<float>((i * 7 + shift) % 13) / 8 - 0.5F);
  }
  return gradient;
}

/** What one process has, which leaves alone what there is no gradient of. */
class Oracle {
 public:
  explicit Oracle(const JobOptions& options) {
    for (const DenseParameter& one : options.dense) {
      std::vector<float> state(static_cast<std::size_t>(state_floats(one.rule, kElements)));
      RuleKernel(one.rule).start(state.data(), kElements);
      parameters_.push_back({RuleKernel(one.rule), one.initial, state});
    }
  }
  void update(int parameter, const std::vector<float>& gradient, float scale) {
    Own& own = parameters_[static_cast<std::size_t>(parameter)];
    own.kernel.apply(own.values.data(), own.state.data(), gradient.data(), kElements, scale);
  }
  const std::vector<float>& values(int parameter) const {
    return parameters_[static_cast<std::size_t>(parameter)].values;
  }

 private:
  struct Own {
    RuleKernel kernel;
    std::vector<float> values;
    std::vector<float> state;
  };
  std::vector<Own> parameters_;
};

void expect_values(Worker& worker, const Oracle& oracle, const std::string& when) {
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    std::vector<float> values(kElements);
    worker.pull_dense(parameter, values);
    EXPECT_EQ(values, oracle.values(parameter)) << when << ", parameter " << parameter;
  }
}

/** Parameters that are pushed in each step: the last never is. */
const std::vector<std::vector<int>>& pushed_in_steps() {
  static const std::vector<std::vector<int>> all{{0}, {1}, {0}, {}, {1, 0}, {0}, {0, 1}};
  return all;
}

void expect_alone(const Rule& rule, const Mode& mode, int servers) {
  const JobOptions options = options_of(rule, mode, 1, servers);
  Oracle oracle(options);
  Job(options).run([&](Worker& worker) {
    for (std::size_t step = 0; step < pushed_in_steps().size(); ++step) {
      for (const int parameter : pushed_in_steps()[step]) {
        const std::vector<float> gradient = gradient_of(parameter, static_cast<int>(step));
        worker.push_dense(parameter, gradient);
        oracle.update(parameter, gradient, 1.0F);
      }
      worker.step();
      worker.flush();
      expect_values(worker, oracle,
                    "rule " + std::to_string(rule.index()) + ", mode " +
                        std::to_string(mode.index()) + ", " + std::to_string(servers) +
                        " servers, step " + std::to_string(step));
    }
  });
}

TEST(PsDensePush, WhatIsNotPushedStaysAsItWasInAllModes) {
  const std::vector<Mode> modes{Sync{}, Async{}, HalfAsync{.merge_batches = 1},
                                Geo{.push_steps = 2}};
  for (const Rule& rule : rules()) {
    for (const Mode& mode : modes) {
      for (const int servers : {1, 2, 3}) expect_alone(rule, mode, servers);
    }
  }
}

TEST(PsDensePush, InSyncModeWhoHasNotPushedCountsOnlyWhereOthersHave) {
  for (const Rule& rule : rules()) {
    for (const int servers : {1, 2, 3}) {
      const JobOptions options = options_of(rule, Sync{}, kWorkers, servers);
      Job(options).run([&](Worker& worker) {
        Oracle oracle(options);
        for (int step = 0; step < 6; ++step) {
          // Parameter 0 is pushed by one worker, each in turn; 1 by both, every other step.
          if (step % kWorkers == worker.index()) worker.push_dense(0, gradient_of(0, step));
          oracle.update(0, gradient_of(0, step), 0.5F);
          if (step % 2 == 0) {
            worker.push_dense(1, gradient_of(1, 10 * step + worker.index()));
            std::vector<float> sum = gradient_of(1, 10 * step);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient_of(1, 10 * step + 1)[i];
            oracle.update(1, sum, 0.5F);
          }
          worker.step();
          expect_values(worker, oracle, "step " + std::to_string(step));
          worker.barrier();  // nobody goes on while another reads
        }
      });
    }
  }
}

TEST(PsDensePush, MergedGradientsAreDividedByTheBatchesThatHadThem) {
  const std::vector<float> ones(kElements, 1.0F);
  for (const int servers : {1, 2}) {
    const JobOptions options =
        options_of(Momentum{.lr = 1.0F}, HalfAsync{.merge_batches = 4}, 1, servers);
    Oracle oracle(options);
    oracle.update(0, ones, 4.0F * 6.0F / 4.0F);
    oracle.update(1, ones, 8.0F);
    Job(options).run([&](Worker& worker) {
      for (int step = 0; step < 4; ++step) {
        for (const float part : {2.0F, 4.0F}) {  // two pushes are one batch
          worker.push_dense(0, std::vector<float>(kElements, part));
          if (step == 2) worker.push_dense(1, std::vector<float>(kElements, 4.0F));
        }
        worker.step();
      }
      expect_values(worker, oracle, std::to_string(servers) + " servers");
    });
  }
}

}  // namespace
}  // namespace tutti::ps::test::dense_push_test
