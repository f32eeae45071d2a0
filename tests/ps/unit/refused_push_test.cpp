// A push that a server has no memory for is an error of a later call; what was there before stays.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "ps/job.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {
namespace {

constexpr int kSkipped = 77;
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
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/dev/shm", "tmpfs", 0, "size=48m") != 0) {
    std::_Exit(kSkipped);
  }
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
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})}) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::string wrong;
      try {
        wrong = fill_small_memory(mode);
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      std::fprintf(stderr, "%s", wrong.c_str());
      std::_Exit(wrong.empty() && !HasFailure() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
      GTEST_SKIP() << "only root can make /dev/shm small: nothing was tested";
    }
    EXPECT_EQ(status, 0) << mode.index();
  }
}

}  // namespace
}  // namespace tutti::ps::test
