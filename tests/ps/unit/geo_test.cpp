// GEO mode: the formulas, step by step, and nothing of any worker's progress is lost.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdint>
#include <latch>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ps/job.hpp"
#include "support/folder.hpp"

namespace tutti::ps::test::geo_test {
namespace {

constexpr std::int64_t kIds = 12;
constexpr std::size_t kElements = 10;

JobOptions options_of(int workers, int servers, std::int64_t push_steps) {
  JobOptions options{.workers = workers, .servers = servers, .mode = Geo{push_steps}};
  // Without a limit of ids the copies of all workers need more addresses than ThreadSanitizer
  // leaves.
  options.tables.push_back({.name = "item", .dim = 1, .rule = Sgd{.lr = 1}, .dict_size = 100});
  options.dense.push_back({.name = "bias",
                           .shape = {kElements},
                           .rule = Sgd{.lr = 1},
                           .initial = std::vector<float>(kElements, 3.0F)});
  return options;
}

std::vector<std::int64_t> all_ids() {
  std::vector<std::int64_t> ids(kIds);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) * 7;
  return ids;
}

/** The formulas, element by element: rows first, then dense elements. */
struct Oracle {
  struct Copy {
    std::vector<float> x;
    std::vector<float> o;
    std::set<std::size_t> trained;  // rows since the last exchange
  };
  std::vector<float> s;
  std::vector<Copy> copies;

  Oracle(int workers, std::vector<float> initial) : s(std::move(initial)) {
    copies.resize(static_cast<std::size_t>(workers), {s, s, {}});
  }
  Copy& of(int worker) { return copies[static_cast<std::size_t>(worker)]; }
  void train(int worker, std::size_t element, float gradient) {
    of(worker).x[element] -= gradient;
    if (element < kIds) of(worker).trained.insert(element);
  }
  void exchange(int worker) {
    Copy& copy = of(worker);
    for (std::size_t i = 0; i < s.size(); ++i) {
      if (i < kIds && !copy.trained.contains(i)) continue;
      const float d = (copy.x[i] - copy.o[i]) / static_cast<float>(copies.size());
      copy.o[i] += d;
      s[i] += d;
    }
    copy.trained.clear();
    for (std::size_t i = 0; i < s.size(); ++i) {
      copy.x[i] += s[i] - copy.o[i];
      copy.o[i] = s[i];
    }
  }
  void finish(int worker) {
    for (std::size_t i = 0; i < s.size(); ++i) s[i] += of(worker).x[i] - of(worker).o[i];
  }
};

std::vector<float> everything(Worker& worker) {
  std::vector<float> all = rows_of(worker, 0, all_ids(), 1);
  std::vector<float> dense(kElements);
  worker.pull_dense(0, dense);
  all.insert(all.end(), dense.begin(), dense.end());
  return all;
}

void push(Worker& worker, const std::map<std::size_t, float>& gradients) {
  std::vector<std::int64_t> ids;
  std::vector<float> rows;
  std::vector<float> dense(kElements);
  for (const auto& [element, gradient] : gradients) {
    if (element < kIds) {
      ids.push_back(all_ids()[element]);
      rows.push_back(gradient);
    } else {
      dense[element - kIds] = gradient;
    }
  }
  worker.push(0, ids, rows);
  worker.push_dense(0, dense);
}

TEST(PsGeo, FollowsItsFormulasToTheBit) {
  constexpr int kWorkers = 3;
  constexpr int kPushSteps = 2;
  for (const int servers : {1, 3}) {
    Job job(options_of(kWorkers, servers, kPushSteps));
    std::optional<Oracle> oracle;
    std::barrier turn(kWorkers);
    job.run([&](Worker& worker) {
      if (worker.index() == 0) oracle.emplace(kWorkers, everything(worker));
      turn.arrive_and_wait();
      for (int step = 1; step <= 8; ++step) {
        for (int whose = 0; whose < kWorkers; ++whose) {
          if (whose == worker.index()) {
            std::mt19937 random(static_cast<unsigned>(step * 10 + whose));
            std::map<std::size_t, float> gradients;
            for (int i = 0; i < 6; ++i)
              gradients[random() % (kIds + kElements)] = static_cast<float>(random() % 1000) / 77;
            push(worker, gradients);
            worker.step();
            for (const auto& [element, gradient] : gradients)
              oracle->train(whose, element, gradient);
            if (step % kPushSteps == 0) oracle->exchange(whose);
            EXPECT_EQ(everything(worker), oracle->of(whose).x) << "step " << step;
          }
          turn.arrive_and_wait();
        }
      }
      worker.stop();
    });
  }
}

/** Workers that stop at different times, with integers: d is exact where they are a power of two.
 * The last sees what all have learnt. */
TEST(PsGeo, NothingOfAnyWorkersProgressIsLost) {
  for (const int workers : {1, 2, 4}) {
    Job job(options_of(workers, 2, 3));
    std::latch others_gone(workers - 1);
    job.run([&](Worker& worker) {
      const std::vector<float> before = everything(worker);
      worker.barrier();
      for (int step = 0; step < 10 + worker.index(); ++step) {
        std::map<std::size_t, float> gradients{{static_cast<std::size_t>(step) % kIds, 16.0F}};
        for (std::size_t i = 0; i < kElements; ++i) gradients[kIds + i] = static_cast<float>(i);
        push(worker, gradients);
        worker.step();
      }
      if (worker.index() != workers - 1) {
        worker.stop();
        others_gone.count_down();
        return;
      }
      others_gone.wait();
      // What others have changed comes with the next exchange; x has all of this worker's own.
      for (int step = 0; step < 3; ++step) worker.step();
      std::vector<float> total(kIds + kElements);
      for (int index = 0; index < workers; ++index) {
        for (int step = 0; step < 10 + index; ++step) {
          total[static_cast<std::size_t>(step) % kIds] += 16;
          for (std::size_t i = 0; i < kElements; ++i) total[kIds + i] += static_cast<float>(i);
        }
      }
      const std::vector<float> after = everything(worker);
      for (std::size_t i = kIds; i < after.size(); ++i)
        EXPECT_EQ(after[i], before[i] - total[i]) << workers << " workers, element " << i;
      for (std::size_t i = 0; i < kIds; ++i)
        EXPECT_NEAR(after[i], before[i] - total[i], 1e-4) << workers << " workers, row " << i;
      worker.stop();
    });
  }
}

/** Who saves, or looks at the model, before the end. */
TEST(PsGeo, AfterABarrierServersHaveAllProgressAndAFlushGetsIt) {
  constexpr int kWorkers = 4;
  const tutti::test::Folder folder;
  JobOptions options = options_of(kWorkers, 2, 100);
  Job job(options);
  const std::map<std::size_t, float> gradients{{1, 16.0F}, {5, 4.0F}, {14, 8.0F}};
  const auto expect_trained = [&](Worker& worker, const std::vector<float>& before, float steps) {
    const std::vector<float> after = everything(worker);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto found = gradients.find(i);
      const float learnt = found == gradients.end() ? 0 : found->second * steps;
      EXPECT_NEAR(after[i], before[i] - learnt, 1e-3) << "element " << i;
    }
  };
  std::vector<float> initial;
  job.run([&](Worker& worker) {
    const std::vector<float> before = everything(worker);
    if (worker.index() == 0) initial = before;
    for (int step = 0; step < 10; ++step) {
      push(worker, gradients);
      worker.step();
    }
    worker.barrier();
    if (worker.index() == 0) worker.save(folder.path());
    worker.flush();
    expect_trained(worker, before, 10 * kWorkers);
    worker.barrier();
    push(worker, gradients);  // and it goes on
    worker.step();
    worker.barrier();
    worker.flush();
    expect_trained(worker, before, 11 * kWorkers);
    worker.barrier();
    worker.stop();
  });
  options.workers = 1;
  options.load = folder.path();
  Job resumed(options);
  resumed.run([&](Worker& worker) {
    expect_trained(worker, initial, 10 * kWorkers);
    worker.stop();
  });
}

/** Many elements: the server is still at it when its worker could read them. */
TEST(PsGeo, WithoutATableItReadsItsOwnProgressBack) {
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  JobOptions options{.mode = Geo{1}};
  options.dense.push_back({.name = "a", .shape = {kMany}, .rule = Sgd{.lr = 1}, .initial = {}});
  Job job(options);
  job.run([&](Worker& worker) {
    std::vector<float> value(kMany);
    for (int step = 1; step <= 20; ++step) {
      worker.push_dense(0, std::vector<float>(kMany, -1.0F));
      worker.step();
      worker.pull_dense(0, value);
      EXPECT_EQ(value, std::vector<float>(kMany, static_cast<float>(step)));
    }
    worker.stop();
  });
}

TEST(PsGeo, ALoadedCheckpointIsWhereCopiesBegin) {
  const tutti::test::Folder folder;
  JobOptions first = options_of(2, 2, 1);
  first.checkpoint = folder.path();
  first.save_at_end = true;
  Job job(first);
  job.run([&](Worker& worker) {
    push(worker, {{1, 2.0F}, {5, -3.5F}, {14, 8.0F}});
    worker.step();
    worker.barrier();
    worker.stop();
  });
  JobOptions second = options_of(1, 3, 1);
  second.load = folder.path();
  Job resumed(second);
  resumed.run([&](Worker& worker) {
    const std::vector<float> all = everything(worker);
    EXPECT_FLOAT_EQ(all[14], 3.0F - 16.0F);
    std::vector<float> fresh(1);
    fill_initial(Uniform{}, table_seed(Job::kSeed, "item"), all_ids()[5], 1, fresh.data());
    EXPECT_FLOAT_EQ(all[5], fresh[0] + 7.0F);
    worker.stop();
  });
}

}  // namespace
}  // namespace tutti::ps::test::geo_test
