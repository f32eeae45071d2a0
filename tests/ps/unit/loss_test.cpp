// Workers and servers that are lost, in each mode, and workers that stop in any order.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <latch>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "ps/job.hpp"
#include "ps/table/place.hpp"
#include "support/folder.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::test::loss_test {
namespace {

using tutti::test::text_of;

const std::vector<std::int64_t> kIds{1, 2, 3, 4, 5, 6, 7, 8, 9};

JobOptions options_of(const Mode& mode, int workers, int servers) {
  JobOptions options{.workers = workers, .servers = servers, .mode = mode};
  // A limit of ids, as there are not addresses for more under ThreadSanitizer.
  options.tables.push_back(
      {.name = "item", .dim = 1, .rule = Sgd{.lr = 1}, .initial = Constant{}, .dict_size = 100});
  return options;
}

/** Those of the ids that one of two servers has. */
std::vector<std::int64_t> ids_of(int server) {
  std::vector<std::int64_t> ids;
  for (const std::int64_t id : kIds) {
    if (place_of(id, Split::hash, 2).server == server) ids.push_back(id);
  }
  return ids;
}

void push(Worker& worker, float value) {
  worker.push(0, kIds, std::vector<float>(kIds.size(), -value));
}

TEST(PsLoss, OthersGoOnWithoutAWorkerAndItsWholePushesCount) {
  const std::vector<Mode> modes{Async{}, Async{.staleness = 1}, HalfAsync{}, Geo{1}};
  for (const Mode& mode : modes) {
    Job job(options_of(mode, 3, 2));
    job.run([&](Worker& worker) {
      push(worker, 1);
      worker.step();
      worker.flush();
      worker.barrier();
      if (worker.index() == 1) {
        push(worker, 1000);  // not ended: nobody sees it
        return;
      }
      for (int step = 0; step < 5; ++step) {
        push(worker, 1);
        worker.step();
      }
      worker.barrier();
      Deadline deadline(std::chrono::seconds(20));
      while (worker.lost_workers().empty()) {
        ASSERT_FALSE(deadline.expired()) << "nobody has heard of the loss; mode " << mode.index();
        push(worker, 0);
        worker.step();
        worker.flush();
      }
      EXPECT_EQ(worker.lost_workers(), (std::vector<int>{1}));
      for (const float row : rows_of(worker, 0, kIds, 1)) {
        // In GEO mode a copy has all of its worker's steps, and of others' what they have pushed.
        EXPECT_GE(row, mode.index() == 3 ? 5.99F : 3 + 2 * 5) << mode.index();
        EXPECT_LE(row, mode.index() == 3 ? 13.01F : 3 + 2 * 5) << mode.index();
      }
      worker.stop();
    });
    EXPECT_EQ(job.stats(0).lost_workers, (std::vector<int>{1})) << mode.index();
    EXPECT_EQ(job.stats(1).lost_workers, (std::vector<int>{1})) << mode.index();
  }
}

TEST(PsLoss, InSyncModeAllOthersAreToldWhoIsLost) {
  Job job(options_of(Sync{}, 4, 2));
  job.run([](Worker& worker) {
    push(worker, 1);
    worker.step();
    if (worker.index() == 2) {
      push(worker, 1000);
      return;
    }
    push(worker, 1);
    try {
      worker.step();
      ADD_FAILURE() << "the round ended without worker 2";
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.ranks(), (std::vector<int>{2}));
      EXPECT_NE(std::string(lost.what()).find("worker 2"), std::string::npos) << lost.what();
    }
    EXPECT_EQ(rows_of(worker, 0, kIds, 1), std::vector<float>(kIds.size(), 1));
    if (worker.index() != 0) worker.stop();
  });
}

TEST(PsLoss, SyncModeGoesOnWithTheLivingWhereAsked) {
  Job job(options_of(Sync{.continue_after_loss = true}, 3, 2));
  job.run([](Worker& worker) {
    push(worker, 3);
    worker.step();
    if (worker.index() == 0) {
      push(worker, 1000);
      return;
    }
    for (int step = 0; step < 4; ++step) {
      push(worker, 3);
      worker.step();
    }
    EXPECT_EQ(rows_of(worker, 0, kIds, 1), std::vector<float>(kIds.size(), 15));
    worker.stop();
  });
}

class Interrupt : public std::exception {};

/** Ends a round, and does not wait for the others. */
void interrupted_step(Worker& worker) {
  const InterruptCheck check([] { throw Interrupt(); });
  EXPECT_THROW(worker.step(), Interrupt);
}

TEST(PsLoss, ARoundThatALostWorkerHasEndedCounts) {
  for (const bool goes_on : {false, true}) {
    const tutti::test::Folder folder;
    JobOptions options = options_of(Sync{.continue_after_loss = goes_on}, 2, 2);
    options.checkpoint = folder.path();
    options.save_at_end = true;
    {
      Job job(options);
      job.run([&](Worker& worker) {
        push(worker, 2);
        if (worker.index() == 1) return interrupted_step(worker);
        job.wait_for_losses(1);
        worker.step();
        EXPECT_EQ(rows_of(worker, 0, kIds, 1), std::vector<float>(kIds.size(), 2));
        push(worker, 2);
        if (goes_on) {
          worker.step();
          EXPECT_EQ(rows_of(worker, 0, kIds, 1), std::vector<float>(kIds.size(), 4));
        } else {
          const std::string text = text_of<PeerLost>([&] { worker.step(); });
          EXPECT_NE(text.find("lost rank 1: worker 1"), std::string::npos) << text;
        }
        worker.stop();
      });
    }
    EXPECT_EQ(inspect_checkpoint(folder.path()).round, goes_on ? 2 : 1);
  }
}

TEST(PsLoss, ARoundThatALostWorkerHasEndedCountsIfNobodyElseIsLeft) {
  const tutti::test::Folder folder;
  JobOptions options = options_of(Sync{}, 2, 1);
  options.checkpoint = folder.path();
  options.save_at_end = true;
  {
    Job job(options);
    job.run([&](Worker& worker) {
      if (worker.index() == 1) {
        push(worker, 2);
        return interrupted_step(worker);
      }
      job.wait_for_losses(1);
      worker.stop();
    });
  }
  EXPECT_EQ(inspect_checkpoint(folder.path()).round, 1);
}

TEST(PsLoss, WhoHasNotEndedARoundIsNamedForIt) {
  Job job(options_of(Sync{}, 3, 1));
  job.run([&](Worker& worker) {
    push(worker, 2);
    if (worker.index() == 1) return interrupted_step(worker);
    if (worker.index() == 2) return job.wait_for_losses(1);
    const std::string text = text_of<PeerLost>([&] { worker.step(); });
    EXPECT_NE(text.find("lost rank 2: worker 2"), std::string::npos) << text;
  });
}

TEST(PsLoss, WhoHasLessDataStopsAndTheOthersGoOn) {
  Job job(options_of(Sync{}, 3, 2));
  job.run([](Worker& worker) {
    for (int step = 0; step < 2 + 3 * worker.index(); ++step) {
      push(worker, 6);
      worker.step();
    }
    if (worker.index() == 2) {
      EXPECT_EQ(rows_of(worker, 0, kIds, 1), std::vector<float>(kIds.size(), 48));
    }
    worker.stop();
  });
  EXPECT_TRUE(job.stats(0).lost_workers.empty());
}

TEST(PsLoss, AWorkerThatDoesNotComeInTimeIsNamedAndNotTheServer) {
  JobOptions options = options_of(Sync{}, 3, 1);
  options.server_timeout = std::chrono::seconds(2);
  Job job(options);
  std::latch others_know(2);
  job.run([&](Worker& worker) {
    worker.step();
    if (worker.index() == 1) {
      others_know.wait();
      EXPECT_THROW(worker.step(), PeerLost);  // its link has ended
      return;
    }
    EXPECT_NE(text_of<PeerLost>([&] { worker.step(); }).find("lost rank 1: worker 1: it did not"),
              std::string::npos);
    others_know.count_down();
    worker.stop();
  });
}

TEST(PsLoss, WhoStillTrainsIsNotLostToThoseAtABarrier) {
  JobOptions options = options_of(Async{}, 3, 2);
  options.server_timeout = std::chrono::seconds(2);
  Job job(options);
  std::atomic<int> told = 0;
  job.run([&](Worker& worker) {
    while (worker.index() == 0 && told < 2) {
      push(worker, 1);
      worker.step();
      worker.flush();
    }
    if (worker.index() != 0) {
      const std::string text = text_of<DeadlineExceeded>([&] { worker.barrier(); });
      EXPECT_TRUE(text.starts_with("server 0: a barrier: worker 0")) << text;
      ++told;
    }
    worker.barrier();
    worker.stop();
  });
  EXPECT_TRUE(job.stats(0).lost_workers.empty());
}

TEST(PsLoss, AServerIsNamedByTheNextCallThatNeedsItAndOtherCallsGoOn) {
  Job job(options_of(Async{}, 2, 2));
  const std::vector<std::int64_t> of_first = ids_of(0);
  std::latch held(1);
  std::latch pushed(2);
  job.run([&](Worker& worker) {
    if (worker.index() == 0) {
      job.hold(1);
      held.count_down();
    }
    held.wait();
    for (int step = 0; step < 8; ++step) {  // batches wait for server 1
      push(worker, 1);
      worker.step();
    }
    pushed.arrive_and_wait();
    if (worker.index() == 0) job.kill(1);
    const auto lost = [&](const auto& call) {
      const std::string text = text_of<PeerLost>(call);
      EXPECT_NE(text.find("lost rank 101: server 1"), std::string::npos) << text;
    };
    lost([&] { worker.flush(); });
    lost([&] { rows_of(worker, 0, kIds, 1); });
    lost([&] {
      push(worker, 1);
      worker.step();
    });
    worker.push(0, of_first, std::vector<float>(of_first.size(), -1));
    worker.step();
    worker.barrier();
    EXPECT_EQ(rows_of(worker, 0, of_first, 1), std::vector<float>(of_first.size(), 20));
    worker.stop();
  });
}

TEST(PsLoss, InSyncModeALostServerIsNamed) {
  Job job(options_of(Sync{}, 2, 2));
  job.run([&](Worker& worker) {
    push(worker, 1);
    worker.step();
    worker.barrier();
    if (worker.index() == 0) {
      job.hold(1);
      job.kill(1);
    }
    const std::string text = text_of<PeerLost>([&] {
      push(worker, 1);
      worker.step();
    });
    EXPECT_NE(text.find("lost rank 101: server 1"), std::string::npos) << text;
    worker.stop();
  });
}

TEST(PsLoss, WhoLeavesBecauseAServerHasDiedIsNotToBlame) {
  Job job(options_of(Sync{}, 3, 2));
  job.run([&](Worker& worker) {
    worker.step();
    if (worker.index() == 0) {
      job.kill(1);
      Deadline deadline(std::chrono::seconds(20));
      text_of<PeerLost>([&] {
        while (!deadline.expired()) rows_of(worker, 0, kIds, 1);
      });
      return;
    }
    const std::string text = text_of<PeerLost>([&] { worker.step(); });
    EXPECT_NE(text.find("lost rank 101: server 1"), std::string::npos) << text;
    worker.stop();
  });
}

using Act = std::function<void(Worker&)>;

constexpr std::chrono::milliseconds kUntilLate{2000};

/** Server 1 stops, which worker 0 finds out by its call, and the others by theirs. */
void expect_stopped_server_is_named(JobOptions options, const Act& of_first, const Act& of_others) {
  options.timeout = kUntilLate;
  Job job(options);
  std::latch held(1);
  std::atomic<int> told = 0;
  job.run([&](Worker& worker) {
    worker.step();
    const bool is_first = worker.index() == 0;
    if (is_first) {
      job.hold(1);
      held.count_down();
    }
    held.wait();
    const std::string text =
        text_of<PeerLost>([&] { is_first ? of_first(worker) : of_others(worker); });
    EXPECT_NE(text.find("lost rank 101: server 1: it did not answer"), std::string::npos) << text;
    if (++told == options.workers) job.release(1);
  });
}

TEST(PsLoss, WhoWaitsForAStoppedServerIsNotToBlame) {
  const std::vector<std::int64_t> ids = ids_of(1);
  const std::vector<float> gradients(ids.size());
  for (const bool goes_on : {false, true}) {
    expect_stopped_server_is_named(
        options_of(Sync{.continue_after_loss = goes_on}, 3, 2),
        [&](Worker& worker) {  // until there is no room for more
          for (std::uint64_t i = 0; i <= kMostUnanswered; ++i) worker.push(0, ids, gradients);
        },
        [](Worker& worker) { worker.step(); });
  }
}

TEST(PsLoss, WhoWaitsForWhoSavesHearsOfAStoppedServerAsSoon) {
  using std::chrono::steady_clock;
  const tutti::test::Folder folder;
  expect_stopped_server_is_named(
      options_of(Sync{.continue_after_loss = true}, 2, 2),
      [&](Worker& worker) { worker.save(folder.path()); },
      [](Worker& worker) {
        const auto begin = steady_clock::now();
        const Finally end([begin] {
          EXPECT_LT(steady_clock::now() - begin, kUntilLate + std::chrono::milliseconds(1600));
        });
        worker.step();
      });
}

}  // namespace
}  // namespace tutti::ps::test::loss_test
