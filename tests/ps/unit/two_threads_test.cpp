// A worker that one thread waits in, and another asks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "fake_worker.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps::test::two_threads_test {
namespace {

TEST(PsTwoThreads, AWaitForTheCallOfTheOtherHearsInterrupts) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(Geo{.push_steps = 1})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 1> servers;
    const auto worker = worker_with(servers, mode);
    std::atomic<bool> waits = false;
    std::atomic<bool> released = false;
    servers[0].is_behind = true;
    servers[0].before_wait = [&] {
      waits = true;
      while (!released) std::this_thread::yield();
    };
    push_some(*worker);
    std::thread other([&] {
      worker->step();
      worker->flush();
    });
    while (!waits) std::this_thread::yield();
    {
      const InterruptCheck check(interrupt);
      EXPECT_THROW(worker->flush(), Interrupted);
    }
    released = true;
    other.join();
    worker->stop();
  }
}

}  // namespace
}  // namespace tutti::ps::test::two_threads_test
