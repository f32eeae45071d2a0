// Sync mode: what all workers push in a round is applied as one worker would with all batches.
#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ps/job.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test::sync_test {
namespace {

using tutti::test::text_of;

constexpr std::int64_t kDim = 5;
constexpr std::int64_t kIds = 40;
constexpr int kRounds = 6;

struct BatchOfRows {
  std::vector<std::int64_t> ids;
  std::vector<float> gradients;
  std::vector<float> dense;
};

/** Part `part` of `parts` of the round's batch: ids come several times, inside parts and across. */
BatchOfRows part_of_round(int round, int part, int parts, float scale) {
  constexpr int kRows = 48;
  BatchOfRows batch;
  std::mt19937 random(static_cast<unsigned>(round));
  std::uniform_int_distribution<std::int64_t> id(-kIds / 2, kIds / 2 - 1);
  std::normal_distribution<float> value;
  for (int row = 0; row < kRows; ++row) {
    const std::int64_t drawn = id(random);
    const bool is_mine = row / (kRows / parts) == part;
    if (is_mine) batch.ids.push_back(drawn);
    for (std::int64_t j = 0; j < kDim; ++j) {
      const float gradient = value(random);
      if (is_mine) batch.gradients.push_back(gradient * scale);
    }
  }
  return batch;
}

std::vector<float> dense_gradient(int round, int part, float scale) {
  std::mt19937 random(static_cast<unsigned>(round * 100 + part));
  std::normal_distribution<float> value;
  std::vector<float> gradient(21);
  for (float& element : gradient) element = value(random) * scale;
  return gradient;
}

JobOptions options_of(const Rule& rule, int workers, int servers) {
  JobOptions options{.workers = workers, .servers = servers, .mode = Sync{}};
  options.tables.push_back({.name = "item", .dim = kDim, .rule = rule});
  DenseParameter weight{.name = "weight", .shape = {7, 3}, .rule = rule, .initial = {}};
  for (int i = 0; i < 21; ++i) weight.initial.push_back(static_cast<float>(i) / 8);
  options.dense.push_back(weight);
  return options;
}

std::vector<std::int64_t> all_ids() {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = -kIds / 2; id < kIds / 2; ++id) ids.push_back(id);
  return ids;
}

/** All rows and elements after kRounds rounds, with `parts` parts of each batch dealt out. */
std::vector<float> trained(const JobOptions& options, int parts, int first_round = 0,
                           int rounds = kRounds) {
  Job job(options);
  const int each = parts / options.workers;
  // The gradients are the same in all lay-outs: what workers are divided by is a power of two.
  const float scale = static_cast<float>(options.workers) / static_cast<float>(parts);
  std::vector<float> result;
  job.run([&](Worker& worker) {
    for (int round = first_round; round < first_round + rounds; ++round) {
      std::vector<float> dense;
      for (int part = worker.index() * each; part < (worker.index() + 1) * each; ++part) {
        const BatchOfRows batch = part_of_round(round, part, parts, scale);
        worker.push(0, batch.ids, batch.gradients);
      }
      // One of the workers alone has the dense parameters' gradients: sums of them would be
      // grouped by workers.
      if (worker.index() == worker.count() - 1)
        worker.push_dense(0, dense_gradient(round, 0, static_cast<float>(options.workers)));
      worker.step();
      // Exactly the version of the round, for everybody.
      const std::vector<float> seen = rows_of(worker, 0, all_ids(), kDim);
      worker.barrier();
      EXPECT_EQ(seen, rows_of(worker, 0, all_ids(), kDim));
    }
    if (worker.index() == 0) {
      result = rows_of(worker, 0, all_ids(), kDim);
      std::vector<float> dense(21);
      worker.pull_dense(0, dense);
      result.insert(result.end(), dense.begin(), dense.end());
    }
    worker.stop();
  });
  return result;
}

TEST(PsSync, IsToTheBitOneWorkerWithAllBatches) {
  const std::vector<Rule> rules{Sgd{.lr = 0.1F}, Adagrad{.lr = 0.1F}, Adam{.lr = 0.1F}};
  for (const Rule& rule : rules) {
    const std::vector<float> alone = trained(options_of(rule, 1, 1), 4);
    for (const int workers : {1, 2, 4}) {
      for (const int servers : {1, 2, 3}) {
        EXPECT_EQ(trained(options_of(rule, workers, servers), 4), alone)
            << "rule " << rule.index() << ", " << workers << " workers, " << servers << " servers";
      }
    }
  }
}

TEST(PsSync, DenseGradientsAreAddedInTheOrderOfRanks) {
  JobOptions options = options_of(Sgd{.lr = 1.0F}, 3, 2);
  std::vector<float> expected = options.dense[0].initial;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    float sum = dense_gradient(1, 0, 1.0F)[i];
    for (int worker = 1; worker < 3; ++worker) sum += dense_gradient(1, worker, 1.0F)[i];
    expected[i] -= 1.0F * (sum * (1.0F / 3.0F));
  }
  Job job(options);
  job.run([&](Worker& worker) {
    worker.push_dense(0, dense_gradient(1, worker.index(), 1.0F));
    worker.step();
    std::vector<float> dense(21);
    worker.pull_dense(0, dense);
    EXPECT_EQ(dense, expected);
    worker.stop();
  });
}

/** Who is in the barrier is told, and may end its step; the other's counts, on all servers. */
TEST(PsSync, ABarrierWhileAnotherEndsAStepIsAMismatchAtOnce) {
  for (const bool stops : {true, false}) {
    for (const int servers : {1, 2}) {
      Job job(options_of(Sgd{.lr = 1.0F}, 2, servers));
      job.run([&](Worker& worker) {
        const std::vector<std::int64_t> ids{1, 2, 3};
        const std::vector<float> before = rows_of(worker, 0, ids, kDim);
        worker.barrier();
        const float gradient = worker.index() == 0 ? 1.0F : 2.0F;
        worker.push(0, ids, std::vector<float>(ids.size() * kDim, gradient));
        if (worker.index() == 0) {
          const std::string text = text_of<MismatchError>([&] { worker.barrier(); });
          EXPECT_NE(text.find("worker 0 waits in a barrier, and worker 1 at the end of step 1"),
                    std::string::npos)
              << text;
        } else if (stops) {
          return worker.stop();
        }
        worker.step();
        std::vector<float> expected = before;
        for (float& element : expected) element -= 1.5F;
        EXPECT_EQ(rows_of(worker, 0, ids, kDim), expected) << servers << " servers";
      });
    }
  }
}

}  // namespace
}  // namespace tutti::ps::test::sync_test
