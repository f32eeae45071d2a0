// A worker in a forked child of its process: refuses every call, so that the parent's goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "fake_worker.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test::forked_worker_test {
namespace {

/** How many of the calls do not throw CommunicationError in a child; -1: it does not end. */
int calls_that_a_child_may(const std::vector<std::function<void()>>& calls) {
  const pid_t child = ::fork();
  if (child == 0) {
    int allowed = 0;
    for (const auto& call : calls) {
      try {
        call();
        ++allowed;
      } catch (const CommunicationError&) {
      }
    }
    std::_Exit(allowed);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(PsForkedWorker, RefusesEveryCall) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  std::vector<float> rows(kSomeIds.size());
  const std::vector<std::function<void()>> calls{
      [&] { worker->lookup(0, kSomeIds, rows); },
      [&] { worker->prefetch(0, kSomeIds); },
      [&] { push_some(*worker); },
      [&] { worker->step(); },
      [&] { worker->flush(); },
      [&] { worker->barrier(); },
      [&] { worker->save("folder"); },
      [&] { worker->stats(); },
      [&] { worker->stop(); },
  };
  EXPECT_EQ(calls_that_a_child_may(calls), 0);
  push_some(*worker);
  worker->step();
  worker->stop();
}

}  // namespace
}  // namespace tutti::ps::test::forked_worker_test
