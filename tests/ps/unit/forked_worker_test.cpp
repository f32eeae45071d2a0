// A worker and a fleet in a forked child of their process: calls are refused, and the parent's go
// on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fake_worker.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"
#include "tutti/unique_id.hpp"

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

/** There its thread is missing, for which the parent's end waits. */
TEST(PsForkedFleet, EndsNothingWhenAnotherTakesItsPlace) {
  Communicator world(0, 1, UniqueId::create());
  const auto fleet_of = [&](const char* table) {
    return Fleet(Placement::threads(world), {.tables = {{.name = table, .dim = 4}}});
  };
  Fleet fleet = fleet_of("item");
  Fleet other = fleet_of("user");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    fleet = std::move(other);
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (Fleet* each : {&fleet, &other}) {
    each->worker().step();
    each->worker().stop();
    each->close();
  }
}

}  // namespace
}  // namespace tutti::ps::test::forked_worker_test
