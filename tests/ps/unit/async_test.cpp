// Async and half-async mode: everything pushed is applied once, merged where servers are behind.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "ps/job.hpp"

namespace tutti::ps::test::async_test {
namespace {

constexpr std::int64_t kDim = 3;

JobOptions options_of(const Mode& mode, int workers, int servers, const Rule& rule = Sgd{.lr = 1}) {
  JobOptions options{.workers = workers, .servers = servers, .mode = mode};
  options.tables.push_back({.name = "item", .dim = kDim, .rule = rule, .initial = Constant{}});
  options.dense.push_back({.name = "bias", .shape = {11}, .rule = rule, .initial = {}});
  return options;
}

const std::vector<std::int64_t> kIds{3, -8, 1000, 3, 17, 1'000'000'007};

/** Adds `value` to the row of each id as often as it comes, and to all dense elements. */
void push(Worker& worker, float value) {
  worker.push(0, kIds, std::vector<float>(kIds.size() * kDim, -value));
  worker.push_dense(0, std::vector<float>(11, -value));
}

/** The row of each id, and all dense elements, as `sum` has them. */
struct Values {
  std::vector<float> rows;
  std::vector<float> dense;

  bool operator==(const Values&) const = default;
};

Values values_of_sum(float sum) {
  Values values{{}, std::vector<float>(11, sum)};
  for (const std::int64_t id : kIds)
    values.rows.insert(values.rows.end(), kDim, id == 3 ? 2 * sum : sum);
  return values;
}

Values values_of(Worker& worker) {
  Values values{rows_of(worker, 0, kIds, kDim), std::vector<float>(11)};
  worker.pull_dense(0, values.dense);
  return values;
}

void expect_sum(Worker& worker, float sum) {
  const Values values = values_of(worker);
  EXPECT_EQ(values.rows, values_of_sum(sum).rows);
  EXPECT_EQ(values.dense, values_of_sum(sum).dense);
}

TEST(PsAsync, AddsUpWhatAllWorkersPush) {
  for (const int servers : {1, 2, 3}) {
    Job job(options_of(Async{}, 3, servers));
    job.run([&](Worker& worker) {
      for (int step = 1; step <= 50; ++step) {
        push(worker, static_cast<float>(step * (worker.index() + 1)));
        worker.step();
      }
      worker.flush();
      worker.barrier();
      expect_sum(worker, 51 * 25 * 6);
      worker.stop();
    });
  }
}

TEST(PsAsync, DividesByWorkersWhereAsked) {
  Job job(options_of(Async{.divide_by_workers = true}, 2, 1));
  job.run([&](Worker& worker) {
    push(worker, 4);
    worker.step();
    worker.barrier();
    expect_sum(worker, 4);
    worker.stop();
  });
}

TEST(PsAsync, WhatIsPushedAfterTheLastStepIsNotLost) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{.merge_batches = 4}), Mode(Sync{})}) {
    Job job(options_of(mode, 2, 2));
    job.run([&](Worker& worker) {
      if (worker.index() == 0) {
        push(worker, 8);
        worker.stop();
        return;
      }
      const bool is_sync = std::holds_alternative<Sync>(mode);
      if (is_sync) worker.step();
      std::vector<float> row(kDim);
      const std::array<std::int64_t, 1> id{17};
      while (row[0] == 0) worker.lookup(0, id, row);
      worker.barrier();
      expect_sum(worker, is_sync ? 4 : 8);
      worker.stop();
    });
  }
}

TEST(PsAsync, MergesWhatWaitsAsSumsForSgd) {
  Job job(options_of(Async{.max_merge_var_num = 3, .send_queue_size = 7}, 1, 1));
  job.run([&](Worker& worker) {
    job.hold(0);
    for (int step = 1; step <= 9; ++step) {
      push(worker, static_cast<float>(step));
      worker.step();
    }
    EXPECT_EQ(worker.stats().merged, 4);  // two were sent, then three, three and one
    job.release(0);
    worker.flush();
    EXPECT_EQ(worker.stats().pushes, 2 * 5);
    expect_sum(worker, 45);
    worker.stop();
  });
}

TEST(PsAsync, MergesWhatWaitsAsMeansForOtherRules) {
  Job job(options_of(Async{.max_merge_var_num = 4}, 1, 2, Momentum{.lr = 1, .momentum = 0}));
  job.run([&](Worker& worker) {
    job.hold(0);
    job.hold(1);
    for (int step = 1; step <= 6; ++step) {
      push(worker, static_cast<float>(step * 4));
      worker.step();
    }
    job.release(0);
    job.release(1);
    worker.flush();
    expect_sum(worker, 4 + 8 + 18);  // two that were sent, and the mean of four
    worker.stop();
  });
}

TEST(PsAsync, WhoOnlyReadsSendsWhatWaits) {
  Job job(options_of(Async{}, 1, 1));
  job.run([&](Worker& worker) {
    job.hold(0);
    for (int step = 0; step < 4; ++step) {
      push(worker, 1);
      worker.step();
    }
    job.release(0);
    Deadline deadline(std::chrono::seconds(20));
    while (values_of(worker) != values_of_sum(4) && !deadline.expired()) {
    }
    expect_sum(worker, 4);
    worker.stop();
  });
}

TEST(PsAsync, AStepWaitsWhileTooManyBatchesWait) {
  std::atomic<bool> released = false;
  std::latch full(1);
  Job job(options_of(Async{.max_merge_var_num = 2, .send_queue_size = 2}, 1, 1));
  job.run([&](Worker& worker) {
    job.hold(0);
    for (int step = 0; step < 4; ++step) {
      push(worker, 1);
      worker.step();
    }
    std::thread releaser([&] {
      full.wait();
      // Time enough for a step that would not wait.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      released = true;
      job.release(0);
    });
    push(worker, 1);
    full.count_down();
    worker.step();  // returns only because the server goes on
    EXPECT_TRUE(released);
    releaser.join();
    worker.flush();
    expect_sum(worker, 5);
    worker.stop();
  });
}

TEST(PsAsync, NobodyIsFurtherAheadThanStalenessAllows) {
  constexpr int kWorkers = 3;
  constexpr int kSteps = 60;
  constexpr std::int64_t kStaleness = 2;
  std::array<std::atomic<std::int64_t>, kWorkers> begun{};  // ends of steps
  Job job(options_of(Async{.staleness = kStaleness}, kWorkers, 2));
  job.run([&](Worker& worker) {
    const auto own = static_cast<std::size_t>(worker.index());
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      if ((static_cast<int>(step) + worker.index()) % 3 != 0) push(worker, 1);
      begun[own] = step;
      worker.step();
      for (const auto& other : begun) EXPECT_LT(step - other, kStaleness) << worker.index();
    }
    worker.barrier();
    expect_sum(worker, kWorkers * kSteps * 2.0F / 3);
    worker.stop();
  });
}

TEST(PsAsync, AStepWaitsForWhoIsTooFarBehind) {
  std::atomic<bool> second_steps = false;
  std::latch ahead(1);
  Job job(options_of(Async{.staleness = 2}, 2, 1));
  job.run([&](Worker& worker) {
    if (worker.index() == 0) {
      worker.step();  // one ahead
      ahead.count_down();
      worker.step();  // returns only once the other has ended one
      EXPECT_TRUE(second_steps);
    } else {
      ahead.wait();
      // Time enough for a step that would not wait.
      for (int i = 0; i < 2000; ++i) rows_of(worker, 0, kIds, kDim);
      second_steps = true;
      worker.step();
    }
    worker.stop();
  });
}

TEST(PsAsync, WhoHasStoppedHoldsNobodyUp) {
  Job job(options_of(Async{.staleness = 1}, 3, 1));
  job.run([&](Worker& worker) {
    for (int step = 0; step < 5 * (worker.index() + 1); ++step) {
      push(worker, 1);
      worker.step();
    }
    worker.stop();
  });
  EXPECT_TRUE(job.stats(0).lost_workers.empty());
}

TEST(PsWorker, RowsGrowOldByRoundsInSyncModeAndByBatchesOfAnyWorkerOtherwise) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})}) {
    JobOptions options = options_of(mode, 2, 2);
    options.tables[0].eviction.max_age = 10;
    options.tables[0].initial = Constant{.value = 1};
    Job job(options);
    job.run([&](Worker& worker) {
      const auto train = [&](int steps) {
        for (int step = 0; step < steps; ++step) {
          push(worker, 1);
          worker.step();
        }
        worker.barrier();
      };
      const std::vector<std::int64_t> id{99};
      if (worker.index() == 0) worker.push(0, id, std::vector<float>(kDim, -8));
      train(4);
      const bool is_sync = std::holds_alternative<Sync>(mode);
      EXPECT_EQ(rows_of(worker, 0, id, kDim), std::vector<float>(kDim, is_sync ? 5 : 9));
      worker.barrier();
      train(is_sync ? 12 : 6);
      EXPECT_EQ(rows_of(worker, 0, id, kDim), std::vector<float>(kDim, 1)) << mode.index();
      worker.barrier();
      worker.stop();
    });
  }
}

TEST(PsHalfAsync, PushesEverySoManyStepsAndReadsWhatItHasPushed) {
  for (const int servers : {1, 3}) {
    Job job(
        options_of(HalfAsync{.merge_batches = 3}, 1, servers, Momentum{.lr = 1, .momentum = 0}));
    job.run([&](Worker& worker) {
      float expected = 0;
      for (int step = 1; step <= 9; ++step) {
        push(worker, static_cast<float>(3 << step));
        worker.step();
        if (step % 3 == 0) expected += static_cast<float>(7 << (step - 2));  // of three, their mean
        std::vector<float> dense(11);
        worker.pull_dense(0, dense);
        for (const float element : dense) EXPECT_FLOAT_EQ(element, expected) << step;
        const std::vector<float> rows = rows_of(worker, 0, kIds, kDim);
        for (std::size_t i = 0; i < rows.size(); ++i)
          EXPECT_FLOAT_EQ(rows[i], kIds[i / kDim] == 3 ? 2 * expected : expected) << step;
      }
      worker.stop();
    });
  }
}

TEST(PsWorker, DuplicatesAreMergedAndPaddingIsNeverPushed) {
  for (const int servers : {1, 2}) {
    JobOptions options = options_of(Async{}, 1, servers);
    options.tables[0].padding_idx = 7;
    options.tables[0].initial = Constant{.value = 1};
    Job job(options);
    job.run([&](Worker& worker) {
      const std::vector<std::int64_t> ids{7, 1, 7, 2, 1, 1, 7};
      worker.push(0, ids, std::vector<float>(ids.size() * kDim, -1));
      worker.step();
      worker.flush();
      EXPECT_EQ(worker.stats().rows_pushed, 2);
      const std::vector<float> rows = rows_of(worker, 0, std::vector<std::int64_t>{7, 1, 2}, kDim);
      EXPECT_EQ(rows, (std::vector<float>{0, 0, 0, 4, 4, 4, 2, 2, 2}));
      worker.stop();
    });
  }
}

}  // namespace
}  // namespace tutti::ps::test::async_test
