// Rows that were prefetched from other hosts: of which moment they are when they are looked up.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "fake_worker.hpp"

namespace tutti::ps::test::prefetch_test {
namespace {

/** Servers are asked for these rows again. */
bool asks_again(std::array<FakeServer, 1>& servers, Worker& worker) {
  const int before = servers[0].count(RequestKind::look_up);
  std::vector<float> rows(kSomeIds.size());
  worker.lookup(0, kSomeIds, rows);
  return servers[0].count(RequestKind::look_up) > before;
}

TEST(PsPrefetch, RowsAreOfAfterTheLastFlush) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{.merge_batches = 2})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 1> servers;
    const auto worker = worker_with(servers, mode);
    worker->prefetch(0, kSomeIds);
    push_some(*worker);
    worker->step();
    worker->flush();
    EXPECT_EQ(servers[0].requests.back().header.kind, RequestKind::look_up);
    EXPECT_EQ(servers[0].count(RequestKind::look_up), 2);
    EXPECT_FALSE(asks_again(servers, *worker));
    worker->stop();
  }
}

TEST(PsPrefetch, RowsAreAtMostAFewStepsOld) {
  std::array<FakeServer, 1> servers;
  const auto worker = worker_with(servers, Async{});
  for (const int steps : {1, 100}) {
    worker->prefetch(0, kSomeIds);
    for (int step = 0; step < steps; ++step) worker->step();
    EXPECT_EQ(asks_again(servers, *worker), steps == 100);
  }
  worker->stop();
}

}  // namespace
}  // namespace tutti::ps::test::prefetch_test
