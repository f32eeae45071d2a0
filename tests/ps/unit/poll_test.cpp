// A server's links, when another thread than that which sleeps there looks at them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ps/echo.hpp"

namespace tutti::ps::test::poll_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const Terms kTerms{"alike"};

std::unique_ptr<Links> meet_one(Place& place) {
  return meet_workers(std::move(place.listener), worker_names(1), kTerms, {}, "", 20s);
}

std::unique_ptr<Link> join(const Place& place) {
  const std::vector<ServerAddress> servers{address_of(0, place.endpoint)};
  Meeting meeting = meet_servers(servers, 0, worker_name(0), kTerms, {}, 20s);
  return std::move(meeting.servers[0].link);
}

TEST(PsPoll, HearsOfLosses) {
  Place place = listen_as(0);
  std::thread worker([&] { join(place); });
  const std::unique_ptr<Links> links = meet_one(place);
  worker.join();
  std::vector<LostWorker> lost;
  for (const auto end = Clock::now() + 10s; lost.empty() && Clock::now() < end;) {
    EXPECT_FALSE(links->poll());
    lost = links->lost();
  }
  EXPECT_EQ(lost.size(), 1U);
}

/** How long a server takes to wake up, whose links another thread looks at just then. */
Clock::duration time_to_wake() {
  Place place = listen_as(0);
  std::mutex mutex;
  std::atomic<Links*> sleeping = nullptr;
  std::thread server([&] {
    const std::unique_ptr<Links> links = meet_one(place);
    {
      std::unique_lock lock(mutex);
      sleeping = links.get();
      EXPECT_FALSE(links->next(20s, lock));
      sleeping = nullptr;
    }
    echo(*links, 1);
  });
  const std::unique_ptr<Link> link = join(place);
  while (sleeping == nullptr) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);  // it sleeps in the kernel
  const auto begin = Clock::now();
  {
    const std::lock_guard lock(mutex);
    sleeping.load()->wake();
    sleeping.load()->poll();
  }
  while (sleeping != nullptr) std::this_thread::yield();
  const auto took = Clock::now() - begin;
  stop(*link);
  server.join();
  return took;
}

TEST(PsPoll, TakesNoWakeAwayFromWhoSleeps) {
  EXPECT_LT(std::min({time_to_wake(), time_to_wake(), time_to_wake()}),
            500ms);  // it sleeps for a second
}

}  // namespace
}  // namespace tutti::ps::test::poll_test
