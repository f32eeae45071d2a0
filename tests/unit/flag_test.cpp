// Counters that ranks sleep on.
#include "comm/shm/memory/flag.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace tutti::shm {
namespace {

/** Each of them would sleep for an hour. */
TEST(Flag, WakesAllWhoSleepOnItInOneStep) {
  constexpr unsigned kSleepers = 8;
  const auto flag = std::make_unique<Flag>();
  std::vector<std::thread> sleepers;
  for (unsigned i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&flag] {
      while (!flag->reached(1)) flag->sleep(0, std::chrono::hours(1));
    });
  }
  while (flag->sleepers.load() < kSleepers) std::this_thread::yield();
  flag->publish(1);
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(flag->sleepers.load(), 0U);
}

}  // namespace
}  // namespace tutti::shm
