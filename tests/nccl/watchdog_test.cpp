// The thread that looks after calls.
#include "comm/nccl/watchdog.hpp"

#include <gtest/gtest.h>

#include <latch>

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, LooksNoMoreWhenTheCallHasReturned) {
  std::latch begun(1);
  std::atomic<int> looks = 0;
  std::atomic<bool> looking = false;
  Watchdog watchdog([&](milliseconds) {
    looking = true;
    if (looks++ == 0) begun.count_down();
    std::this_thread::sleep_for(milliseconds(200));
    looking = false;
  });
  {
    const Watchdog::Guard guard(watchdog);
    begun.wait();
  }
  EXPECT_FALSE(looking) << "what it looks at may be destroyed now";
}

}  // namespace
}  // namespace tutti::nccl
