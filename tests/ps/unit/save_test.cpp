// Checkpoints beside the training: on demand, from time to time, and when all workers have gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ps/files/manifest.hpp"
#include "ps/job.hpp"
#include "support/folder.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::test::save_test {
namespace {

constexpr std::int64_t kDim = 3;
constexpr std::int64_t kIds = 500;

/** Has a checkpoint. */
class Folder : public tutti::test::Folder {
 public:
  std::string checkpoint() const { return *this / "checkpoint"; }
  /** What is there, but for the checkpoint itself. */
  std::vector<std::string> rest() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      if (entry.path() != checkpoint()) names.push_back(entry.path().filename());
    }
    std::ranges::sort(names, std::greater<>());
    return names;
  }
};

/** The folder of the parts of a checkpoint. */
std::string attempt_of(const std::string& checkpoint) {
  return read_manifest(checkpoint).attempt + ".tuttiparts";
}

JobOptions options_of(const Mode& mode, int workers, int servers) {
  JobOptions options{.workers = workers, .servers = servers, .mode = mode};
  options.tables.push_back({.name = "item", .dim = kDim, .rule = Adam{.lr = 0.1F}});
  options.dense.push_back({.name = "bias", .shape = {13}, .rule = Adagrad{}, .initial = {}});
  return options;
}

void train_round(Worker& worker, int round) {
  std::mt19937 random(static_cast<unsigned>(round * 10 + worker.index()));
  std::normal_distribution<float> value;
  std::vector<std::int64_t> ids(64);
  std::vector<float> gradients(ids.size() * kDim);
  std::vector<float> dense(13);
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % kIds);
  for (float& gradient : gradients) gradient = value(random);
  for (float& gradient : dense) gradient = value(random);
  worker.push(0, ids, gradients);
  worker.push_dense(0, dense);
  worker.step();
}

std::vector<float> everything(Worker& worker) {
  std::vector<std::int64_t> ids(kIds);
  for (std::int64_t id = 0; id < kIds; ++id) ids[static_cast<std::size_t>(id)] = id;
  std::vector<float> all = rows_of(worker, 0, ids, kDim);
  std::vector<float> dense(13);
  worker.pull_dense(0, dense);
  all.insert(all.end(), dense.begin(), dense.end());
  return all;
}

TEST(PsSave, SyncModeGoesOnToTheBitOnAnotherNumberOfServers) {
  const Folder folder;
  std::vector<float> expected;
  Job first(options_of(Sync{}, 2, 2));
  first.run([&](Worker& worker) {
    for (int round = 0; round < 3; ++round) train_round(worker, round);
    // The other worker is in its next round meanwhile.
    if (worker.index() == 0) worker.save(folder.checkpoint());
    for (int round = 3; round < 6; ++round) train_round(worker, round);
    if (worker.index() == 0) expected = everything(worker);
    worker.stop();
  });
  EXPECT_EQ(inspect_checkpoint(folder.checkpoint()).round, 3);
  EXPECT_TRUE(folder.rest().empty());
  for (const int servers : {1, 2, 3}) {
    JobOptions options = options_of(Sync{}, 2, servers);
    options.load = folder.checkpoint();
    Job resumed(options);
    resumed.run([&](Worker& worker) {
      for (int round = 3; round < 6; ++round) train_round(worker, round);
      if (worker.index() == 1) {
        EXPECT_EQ(everything(worker), expected) << servers;
      }
      worker.stop();
    });
  }
}

TEST(PsSave, EveryModeSavesWhatWasPushedBefore) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{}), Mode(Geo{1})}) {
    const Folder folder;
    std::vector<float> expected;
    Job first(options_of(mode, 1, 2));
    first.run([&](Worker& worker) {
      for (int round = 0; round < 3; ++round) train_round(worker, round);
      worker.save(folder.checkpoint());
      expected = everything(worker);
      train_round(worker, 3);
      worker.stop();
    });
    JobOptions options = options_of(mode, 1, 1);
    options.load = folder.checkpoint();
    Job resumed(options);
    resumed.run([&](Worker& worker) {
      // In GEO mode the server has what the worker has, but for rounding.
      const std::vector<float> loaded = everything(worker);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(loaded[i], expected[i], mode.index() == 3 ? 1e-6 : 0) << i;
      worker.stop();
    });
  }
}

TEST(PsSave, WhatCannotBeWrittenIsAnErrorAndTheTrainingGoesOn) {
  const Folder folder;
  Job job(options_of(Async{}, 1, 2));
  job.run([&](Worker& worker) {
    train_round(worker, 0);
    const std::string file = folder.checkpoint() + "_file";
    std::ofstream(file) << "no folder";
    const std::string text =
        tutti::test::text_of<SystemError>([&] { worker.save(file + "/inside"); });
    EXPECT_NE(text.find(file), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("cannot be made: Not a directory")) << text;
    train_round(worker, 1);
    worker.save(folder.checkpoint());
    worker.stop();
  });
  EXPECT_EQ(inspect_checkpoint(folder.checkpoint()).servers, 2);
}

/** Or else one full disk would be full for all that follow. */
TEST(PsSave, WhatFailsLeavesNothingOfAnyServer) {
  const Folder folder;
  Job job(options_of(Async{}, 1, 3));
  const std::filesystem::path full = folder / job.unfinished_part(0, 1, 1);
  job.run([&](Worker& worker) {
    worker.save(folder.path());
    std::filesystem::create_directories(full.parent_path());
    std::filesystem::create_symlink("/dev/full", full);
    train_round(worker, 0);
    const std::string text = tutti::test::text_of<SystemError>([&] { worker.save(folder.path()); });
    EXPECT_TRUE(text.ends_with("No space left on device")) << text;
    EXPECT_EQ(folder.rest(), (std::vector<std::string>{"manifest", attempt_of(folder.path())}));
    worker.stop();
  });
}

TEST(PsSave, ServersSaveWhenNoWorkerIsLeftAlsoIfAllAreLost) {
  for (const bool stops : {true, false}) {
    const Folder folder;
    std::vector<float> expected;
    JobOptions options = options_of(Async{}, 2, 3);
    options.checkpoint = folder.checkpoint();
    options.save_at_end = true;
    Job first(options);
    first.run([&](Worker& worker) {
      train_round(worker, 0);
      worker.barrier();
      if (worker.index() == 0) expected = everything(worker);
      worker.barrier();
      if (stops) worker.stop();
    });
    EXPECT_TRUE(folder.rest().empty());
    JobOptions second = options_of(Async{}, 1, 2);
    second.load = folder.checkpoint();
    Job resumed(second);
    resumed.run([&](Worker& worker) {
      EXPECT_EQ(everything(worker), expected) << stops;
      worker.stop();
    });
  }
}

TEST(PsSave, TrainingGoesOnWhereACheckpointCannotBePublished) {
  const Folder folder;
  JobOptions options = options_of(Async{}, 1, 1);
  options.checkpoint = folder.checkpoint();
  options.every = std::chrono::seconds(1);
  std::filesystem::create_directories(folder.checkpoint() + "/manifest/in_the_way");
  const auto part_is_there = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder.checkpoint())) {
      if (std::filesystem::exists(entry.path() / part_name(0))) return true;
    }
    return false;
  };
  Job job(options);
  job.run([&](Worker& worker) {
    int round = 0;
    while (!part_is_there()) train_round(worker, round++);
    for (int i = 0; i < 20; ++i) {
      train_round(worker, round++);
      worker.flush();
    }
    worker.stop();
  });
}

TEST(PsSave, AJobThatIsCutShortLeavesWhatTheJobBeforeHasSaved) {
  const Folder folder;
  JobOptions options = options_of(Async{}, 1, 2);
  options.checkpoint = folder.checkpoint();
  options.save_at_end = true;
  std::vector<float> expected;
  Job first(options);
  first.run([&](Worker& worker) {
    train_round(worker, 0);
    worker.flush();
    expected = everything(worker);
    worker.stop();
  });
  options.load = folder.checkpoint();
  options.timeout = std::chrono::seconds(1);
  Job second(options);
  second.run([&](Worker& worker) {
    train_round(worker, 1);
    worker.flush();
    second.kill(1);  // server 0 waits for its part in vain
  });
  options.save_at_end = false;
  Job third(options);
  third.run([&](Worker& worker) {
    EXPECT_EQ(everything(worker), expected);
    worker.stop();
  });
}

TEST(PsSave, EachJobWritesWhereNoOtherHasWritten) {
  const Folder folder;
  std::set<std::string> attempts;
  for (int job = 0; job < 2; ++job) {
    Job saving(options_of(Async{}, 1, 1));
    saving.run([&](Worker& worker) {
      worker.save(folder.checkpoint());
      worker.stop();
    });
    attempts.insert(read_manifest(folder.checkpoint()).attempt);
  }
  EXPECT_EQ(attempts.size(), 2U);
}

TEST(PsSave, AnotherWorkerSeesToCheckpointsWhereTheLowestEndsNoStep) {
  const Folder folder;
  JobOptions options = options_of(Async{}, 2, 2);
  options.checkpoint = folder.checkpoint();
  options.every = std::chrono::seconds(1);
  Job job(options);
  job.run([&](Worker& worker) {
    const std::filesystem::path manifest = std::filesystem::path(folder.checkpoint()) / "manifest";
    for (int round = 0; worker.index() == 1 && !std::filesystem::exists(manifest); ++round) {
      train_round(worker, round);
      worker.flush();
    }
    worker.barrier();
    worker.stop();
  });
}

TEST(PsSave, ServersHaveTheLowestWorkerSeeToCheckpointsFromTimeToTime) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{})}) {
    const Folder folder;
    JobOptions options = options_of(mode, 2, 2);
    options.checkpoint = folder.checkpoint();
    options.every = std::chrono::seconds(1);
    Job job(options);
    std::atomic<bool> is_there = false;
    job.run([&](Worker& worker) {
      int round = 0;
      // Sync: the same number of steps for all.
      for (bool ends = false; !ends; worker.barrier()) {
        train_round(worker, round++);
        if (worker.index() == 0) is_there = std::filesystem::exists(folder.checkpoint());
        worker.barrier();
        ends = is_there;
      }
      worker.stop();
    });
    EXPECT_EQ(inspect_checkpoint(folder.checkpoint()).servers, 2) << mode.index();
    EXPECT_TRUE(folder.rest().empty()) << mode.index();
  }
}

}  // namespace
}  // namespace tutti::ps::test::save_test
