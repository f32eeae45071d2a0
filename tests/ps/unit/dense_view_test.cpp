// Dense parameters that workers read where servers have them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "ps/dense/layout.hpp"
#include "ps/job.hpp"
#include "ps/unit/stored_job.hpp"
#include "support/folder.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test::dense_view_test {
namespace {

using tutti::test::text_of;

constexpr std::int64_t kRows = 3000;
constexpr std::int64_t kColumns = 3;
constexpr std::int64_t kElements = kRows * kColumns;
constexpr int kBias = 0;
constexpr int kOwn = 1;
constexpr int kWeight = 2;

/** Element i begins with i. */
DenseParameter parameter(std::string name, std::vector<std::int64_t> shape, bool shared) {
  DenseParameter made{
      .name = std::move(name), .shape = std::move(shape), .rule = Sgd{.lr = 1.0F}, .initial = {}};
  for (std::int64_t i = 0; i < element_count(made); ++i)
    made.initial.push_back(static_cast<float>(i));
  made.shared = shared;
  return made;
}

/** A shared parameter lies behind, and another before, one that is cut anywhere. */
std::vector<DenseParameter> parameters() {
  return {parameter("bias", {5}, true), parameter("own", {7}, false),
          parameter("weight", {kRows, kColumns}, true)};
}

JobOptions options_of(const Mode& mode, int workers, int servers) {
  JobOptions options{.workers = workers, .servers = servers, .dense = parameters(), .mode = mode};
  return options;
}

/** Element i of each parameter loses i % 5 + 1 in all, and in a step of sync mode. */
void push(Worker& worker, float scale = 1.0F) {
  for (const auto& [number, elements] :
       {std::pair{kBias, std::int64_t{5}}, {kOwn, 7}, {kWeight, kElements}}) {
    std::vector<float> gradient;
    for (std::int64_t i = 0; i < elements; ++i)
      gradient.push_back(scale * static_cast<float>(i % 5 + 1));
    worker.push_dense(number, gradient);
  }
}

std::vector<float> after(std::int64_t elements, int pushes) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i)
    values.push_back(static_cast<float>(i - pushes * (i % 5 + 1)));
  return values;
}

std::vector<float> copy_of(const DenseView& view) {
  return {view.values().begin(), view.values().end()};
}

std::vector<float> pulled(Worker& worker, int number, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  worker.pull_dense(number, values);
  return values;
}

/** What the system says to who would write there. */
int error_of_writing_to(const DenseView& view) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  EXPECT_EQ(::write(ends[1], "x", 1), 1);
  const ssize_t bytes = ::read(ends[0], const_cast<float*>(view.values().data()), 1);
  const int error = bytes < 0 ? errno : 0;
  ::close(ends[0]);
  ::close(ends[1]);
  return error;
}

TEST(PsDenseView, InSyncModeItIsTheLastRoundOfAllServers) {
  for (const int servers : {1, 2, 3}) {
    Job job(options_of(Sync{}, 2, servers));
    job.run([&](Worker& worker) {
      const DenseView bias = worker.view_dense(kBias);
      const DenseView weight = worker.view_dense(kWeight);
      for (int round = 0; round < 4; ++round) {
        EXPECT_EQ(copy_of(bias), after(5, round));
        EXPECT_EQ(copy_of(weight), after(kElements, round)) << servers << " servers";
        EXPECT_EQ(pulled(worker, kWeight, kElements), after(kElements, round));
        EXPECT_EQ(pulled(worker, kOwn, 7), after(7, round));
        push(worker);
        worker.barrier();
        EXPECT_EQ(copy_of(weight), after(kElements, round));  // not before step(), whoever has come
        worker.step();
      }
      EXPECT_EQ(worker.view_dense(kWeight).values().data(), weight.values().data());
      worker.barrier();
      worker.stop();
    });
  }
}

TEST(PsDenseView, InAsyncModesItIsWhatServersHave) {
  const std::vector<Mode> modes{Async{}, Async{.staleness = 1}, HalfAsync{2}};
  for (const Mode& mode : modes) {
    Job job(options_of(mode, 2, 2));
    job.run([&](Worker& worker) {
      const DenseView weight = worker.view_dense(kWeight);
      for (int step = 0; step < 3; ++step) {
        push(worker);
        worker.step();
      }
      worker.flush();
      worker.barrier();
      EXPECT_EQ(copy_of(weight), after(kElements, 6)) << mode.index();
      EXPECT_EQ(copy_of(worker.view_dense(kBias)), after(5, 6));
      worker.barrier();
      worker.stop();
    });
  }
}

TEST(PsDenseView, CannotBeWritten) {
  Job job(options_of(Sync{}, 1, 2));  // whose servers write in this process
  job.run([](Worker& worker) {
    const DenseView weight = worker.view_dense(kWeight);
    EXPECT_EQ(error_of_writing_to(weight), EFAULT);
    EXPECT_EQ(copy_of(weight), after(kElements, 0));
    worker.stop();
  });
}

TEST(PsDenseView, OutlivesWorkerAndServers) {
  std::optional<DenseView> weight;
  {
    Job job(options_of(Async{}, 1, 3));
    job.run([&](Worker& worker) {
      weight = worker.view_dense(kWeight);
      push(worker);
      worker.step();
      worker.stop();
      const std::string text = text_of<Error>([&] { worker.view_dense(kWeight); });
      EXPECT_NE(text.find("stop() was called"), std::string::npos) << text;
    });
  }
  EXPECT_EQ(copy_of(*weight), after(kElements, 1));
}

TEST(PsDenseView, OfALostServerItHasTheLastValues) {
  Job job(options_of(Async{}, 1, 2));
  const std::unique_ptr<Worker> worker = job.join(0);
  const DenseView weight = worker->view_dense(kWeight);
  push(*worker);
  worker->step();
  worker->flush();
  job.kill(1);
  Deadline deadline(std::chrono::seconds(20));
  const std::string text = text_of<PeerLost>([&] {
    while (!deadline.expired()) worker->view_dense(kWeight);
  });
  EXPECT_NE(text.find("server 1"), std::string::npos) << text;
  EXPECT_EQ(copy_of(weight), after(kElements, 1));
}

TEST(PsDenseView, WhatCannotBeReadInPlaceIsRefused) {
  Job job(options_of(Sync{}, 1, 2));
  job.run([](Worker& worker) {
    EXPECT_EQ(text_of<InvalidArgument>([&] { worker.view_dense(kOwn); }),
              "view_dense: DenseParameter::shared of own is false, but must be true");
    EXPECT_EQ(text_of<InvalidArgument>([&] { worker.view_dense(3); }),
              "view_dense: parameter is 3, but there are 3");
    worker.stop();
  });
  Job geo(options_of(Geo{2}, 1, 2));
  geo.run([](Worker& worker) {
    EXPECT_EQ(text_of<InvalidArgument>([&] { worker.view_dense(kWeight); }),
              "view_dense: in Geo mode each worker trains a copy of its own");
    worker.stop();
  });
}

TEST(PsDenseView, GeoModeTrainsSharedParametersAsOthers) {
  Job job(options_of(Geo{2}, 1, 3));
  job.run([](Worker& worker) {
    for (int step = 0; step < 5; ++step) {
      push(worker);
      worker.step();
    }
    EXPECT_EQ(pulled(worker, kBias, 5), after(5, 5));
    EXPECT_EQ(pulled(worker, kOwn, 7), after(7, 5));
    EXPECT_EQ(pulled(worker, kWeight, kElements), after(kElements, 5));
    worker.stop();
  });
}

TEST(PsDenseView, CheckpointsOfSharedParametersAreOfAnyNumberOfServers) {
  const tutti::test::Folder folder;
  StoredJob job({}, parameters(), 3);
  job.push_dense(1);
  job.save(folder.path(), "attempt");
  StoredJob other({}, parameters(), 2);
  EXPECT_NE(other.dense_values(), job.dense_values());
  other.load(folder.path());
  EXPECT_EQ(other.dense_values(), job.dense_values());
  EXPECT_EQ(job.dense_values().at("weight").size(), static_cast<std::size_t>(kElements));
}

}  // namespace
}  // namespace tutti::ps::test::dense_view_test
