// A push that a server has no memory for is an error of a later call; what was there before stays.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "own_mounts.hpp"
#include "ps/job.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test::refused_push_test {
namespace {

constexpr std::int64_t kDim = 64;
constexpr std::int64_t kBatch = 4'000;

std::vector<std::int64_t> batch(std::int64_t number) {
  std::vector<std::int64_t> ids(kBatch);
  std::iota(ids.begin(), ids.end(), number * kBatch);
  return ids;
}

void push(Worker& worker, std::int64_t number) {
  worker.push(0, batch(number), std::vector<float>(kBatch * kDim, -1.0F));
  worker.step();
  worker.flush();
}

/** What is wrong with a job that takes all of a small /dev/shm; nothing if all is well. */
std::string fill_small_memory(const Mode& mode) {
  mount_shared_memory("size=48m");
  JobOptions options{.mode = mode};
  options.tables.push_back(
      {.name = "item", .dim = kDim, .rule = Sgd{.lr = 1}, .initial = Constant{}});
  Job job(options);
  std::string wrong;
  job.run([&](Worker& worker) {
    std::int64_t pushed = 0;
    try {
      for (;; ++pushed) push(worker, pushed);
    } catch (const SystemError&) {
    }
    const std::vector<float> ones(kBatch * kDim, 1.0F);
    if (pushed == 0 || rows_of(worker, 0, batch(0), kDim) != ones) wrong = "rows have changed";
    if (rows_of(worker, 0, batch(pushed), kDim) != std::vector<float>(kBatch * kDim))
      wrong = "half a push is there";
    push(worker, 0);
    if (rows_of(worker, 0, batch(0), kDim) != std::vector<float>(kBatch * kDim, 2.0F))
      wrong = "rows that are there cannot be pushed any more";
    worker.stop();
  });
  return wrong;
}

TEST(PsWorker, ARefusedPushIsAnErrorOfTheNextStepOrFlush) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})})
    check_in_process([&] { return fill_small_memory(mode); });
}

/** What is wrong with a round of more bytes than /dev/shm has; nothing if all is well. */
std::string push_more_than_memory() {
  mount_shared_memory("size=16m");
  constexpr int kPushes = 24;  // of a megabyte
  JobOptions options{.mode = Sync{}};
  options.tables.push_back(
      {.name = "item", .dim = kDim, .rule = Sgd{.lr = 1}, .initial = Constant{}});
  Job job(options);
  std::string wrong;
  job.run([&](Worker& worker) {
    for (int i = 0; i < kPushes; ++i)
      worker.push(0, batch(0), std::vector<float>(kBatch * kDim, -1.0F));
    worker.step();
    if (rows_of(worker, 0, batch(0), kDim) != std::vector<float>(kBatch * kDim, kPushes))
      wrong = "a push of the round is missing";
    worker.stop();
  });
  return wrong;
}

TEST(PsWorker, ARoundInSyncModeMayHaveMoreThanSharedMemory) {
  check_in_process(push_more_than_memory);
}

}  // namespace
}  // namespace tutti::ps::test::refused_push_test
