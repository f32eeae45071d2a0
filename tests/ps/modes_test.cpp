// Modes where some servers are on other hosts: what travels is what lies in shared memory
// elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "ps/dense/store.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/merge.hpp"
#include "ps/table/table.hpp"
#include "support/thrown.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {
namespace {

using tutti::test::text_of;

constexpr std::int64_t kDim = 5;
constexpr std::int64_t kIds = 300;
constexpr std::int64_t kElements = 33;

FleetOptions options_of(const Mode& mode, const Rule& rule) {
  FleetOptions options;
  options.mode = mode;
  options.seed = 3;
  options.slicing.min_block_size = 4;
  options.tables.push_back({.name = "item", .dim = kDim, .rule = rule});
  options.dense.push_back({.name = "weight",
                           .shape = {kElements / 3, 3},
                           .rule = rule,
                           .initial = std::vector<float>(kElements, 2.0F)});
  return options;
}

struct Gradients {
  std::vector<std::int64_t> ids;
  std::vector<float> rows;
  std::vector<float> dense;
};

/** Ids come several times, and in the batches of several workers. */
Gradients gradients_of(int worker, int round) {
  std::mt19937 random(static_cast<unsigned>(worker * 1000 + round));
  std::normal_distribution<float> value;
  Gradients gradients;
  for (int i = 0; i < 200; ++i) gradients.ids.push_back(static_cast<std::int64_t>(random() % kIds));
  for (std::int64_t i = 0; i < 200 * kDim; ++i) gradients.rows.push_back(value(random));
  for (std::int64_t i = 0; i < kElements; ++i) gradients.dense.push_back(value(random));
  return gradients;
}

std::vector<std::int64_t> all_ids() {
  std::vector<std::int64_t> ids(kIds);
  for (std::int64_t id = 0; id < kIds; ++id) ids[static_cast<std::size_t>(id)] = id;
  return ids;
}

std::vector<float> rows_of(Worker& worker) {
  std::vector<float> rows(kIds * kDim);
  worker.lookup(0, all_ids(), rows);
  return rows;
}

std::vector<float> dense_of(Worker& worker) {
  std::vector<float> dense(kElements);
  worker.pull_dense(0, dense);
  return dense;
}

/** What one process makes of the rounds of all workers. */
class Oracle {
 public:
  explicit Oracle(const FleetOptions& options)
      : table_({options.tables[0], table_seed(options.seed, "item"), 0, 1}, ""),
        dense_({{{0, 0, 0, kElements, "weight"}, options.dense[0].rule}}, "") {
    dense_.set(options.dense[0].initial);
  }

  void round(int workers, int number) {
    Merger merger(kDim);
    std::vector<float> sum;
    for (int worker = 0; worker < workers; ++worker) {
      const Gradients own = gradients_of(worker, number);
      merger.add(own.ids, own.rows.data());
      if (sum.empty()) {
        sum = own.dense;
      } else {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own.dense[i];
      }
    }
    const float scale = 1.0F / static_cast<float>(workers);
    table_.update({merger.ids(), merger.rows(), scale});
    dense_.update({0, sum}, scale);
  }
  std::vector<float> rows() const {
    std::vector<float> rows(kIds * kDim);
    table_.lookup(all_ids(), {}, rows.data());
    return rows;
  }
  std::vector<float> dense() const { return {dense_.values().begin(), dense_.values().end()}; }

 private:
  Table table_;
  DenseStore dense_;
};

class Modes : public tutti::test::RankTest {
 protected:
  /** Runs a job in which half of the ranks serve, and one in which there is a server on each host,
   * if each has two ranks. */
  template <class Body>
  void on_workers(const FleetOptions& options, const Body& body) {
    on_ranks([&](Communicator& world) {
      run(Placement::last_ranks(world, world.world_size() / 2), options, body);
      const auto& hosts = tutti::test::world().hosts;
      for (const int host : hosts) {
        if (std::count(hosts.begin(), hosts.end(), host) < 2) return;
      }
      run(Placement::one_per_host(world), options, body);
    });
  }

  template <class Body>
  static void run(const Placement& placement, const FleetOptions& options, const Body& body) {
    Fleet fleet(placement, options);
    if (fleet.is_server()) {
      fleet.server().run();
    } else {
      body(fleet.worker());
      fleet.worker().stop();
    }
  }
};

void push(Worker& worker, int round) {
  const Gradients own = gradients_of(worker.index(), round);
  worker.push(0, own.ids, own.rows);
  worker.push_dense(0, own.dense);
}

TEST_F(Modes, SyncReadsExactlyTheRoundAlsoWhatWasPrefetchedBefore) {
  for (const Rule& rule : {Rule(Sgd{.lr = 0.1F}), Rule(Adam{.lr = 0.1F})}) {
    const FleetOptions options = options_of(Sync{}, rule);
    on_workers(options, [&](Worker& worker) {
      Oracle oracle(options);
      for (int round = 0; round < 5; ++round) {
        push(worker, round);
        worker.prefetch(0, all_ids());
        worker.step();
        oracle.round(worker.count(), round);
        EXPECT_EQ(rows_of(worker), oracle.rows()) << "round " << round;
        EXPECT_EQ(dense_of(worker), oracle.dense()) << "round " << round;
      }
    });
  }
}

TEST_F(Modes, SyncReadsItsRoundAlsoWhatWasPrefetchedRoundsBefore) {
  FleetOptions options = options_of(Sync{}, Sgd{.lr = 1.0F});
  options.tables[0].initial = Constant{};
  on_workers(options, [&](Worker& worker) {
    const std::vector<std::int64_t> ids = all_ids();
    worker.prefetch(0, ids);
    for (int round = 0; round < 3; ++round) {
      worker.push(0, ids, std::vector<float>(kIds * kDim, -1.0F));
      worker.step();
    }
    EXPECT_EQ(rows_of(worker), std::vector<float>(kIds * kDim, 3.0F));
  });
}

TEST_F(Modes, HalfAsyncReadsWhatItHasPushed) {
  FleetOptions options = options_of(HalfAsync{}, Sgd{.lr = 1.0F});
  options.tables[0].initial = Constant{};
  on_workers(options, [&](Worker& worker) {
    const std::vector<std::int64_t> own{std::int64_t{2} * worker.index(),
                                        std::int64_t{2} * worker.index() + 1};
    std::vector<float> rows(2 * kDim);
    for (int step = 1; step <= 4; ++step) {
      worker.push(0, own, std::vector<float>(rows.size(), -1.0F));
      worker.prefetch(0, own);
      worker.step();
      worker.lookup(0, own, rows);
      EXPECT_EQ(rows, std::vector<float>(rows.size(), static_cast<float>(step)));
    }
  });
}

TEST_F(Modes, GeoBringsWhatOthersHaveLearntToTheLast) {
  FleetOptions options = options_of(Geo{.push_steps = 2}, Sgd{.lr = 1.0F});
  options.tables[0].initial = Constant{};
  on_workers(options, [&](Worker& worker) {
    const std::vector<std::int64_t> ids = all_ids();
    for (int step = 0; step < 4; ++step) {
      worker.push(0, ids, std::vector<float>(kIds * kDim, -64.0F));
      worker.push_dense(0, std::vector<float>(kElements, -64.0F));
      worker.step();
    }
    if (worker.index() != 0) return;  // it stops, and leaves what it has not sent yet
    // Thirds are rounded, and what is exchanged again and again in ever smaller parts.
    const auto all = static_cast<float>(worker.count() * 4 * 64);
    const auto is_near = [](std::span<const float> values, float expected) {
      return std::ranges::all_of(values,
                                 [=](float value) { return std::abs(value - expected) < 0.01F; });
    };
    Deadline deadline(std::chrono::seconds(20));
    while (!is_near(rows_of(worker), all) || !is_near(dense_of(worker), all + 2)) {
      ASSERT_FALSE(deadline.expired()) << rows_of(worker)[0] << " is not near " << all;
      worker.step();
    }
  });
}

TEST_F(Modes, DenseParametersAreReadInPlaceOnTheHostOfAllTheirServers) {
  FleetOptions options = options_of(Sync{}, Sgd{.lr = 1.0F});
  options.dense[0].shared = true;  // too small to be cut: server 0 has all of it
  on_ranks([&](Communicator& world) {
    const int workers = world.world_size() - world.world_size() / 2;  // server 0 has this rank
    const auto& hosts = tutti::test::world().hosts;
    const bool is_here = hosts[static_cast<std::size_t>(world.global_rank())] ==
                         hosts[static_cast<std::size_t>(workers)];
    run(Placement::last_ranks(world, world.world_size() / 2), options, [&](Worker& worker) {
      for (int round = 0; round < 2; ++round) {
        push(worker, round);
        worker.step();
        if (is_here) {
          const DenseView view = worker.view_dense(0);
          EXPECT_EQ(std::vector<float>(view.values().begin(), view.values().end()),
                    dense_of(worker));
        } else {
          const std::string text = text_of<InvalidArgument>([&] { worker.view_dense(0); });
          EXPECT_TRUE(text.starts_with("view_dense: weight is in the memory of another host: "))
              << text;
        }
        worker.barrier();
      }
    });
  });
}

}  // namespace
}  // namespace tutti::ps
