// How waits pass the time between two looks.
#include "base/waiter.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tutti {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

int between_calls = 0;

TEST(Waiter, FirstLooksCostNothingElse) {
  const WaitPolicy policy{.first_looks = 3, .between = [] { ++between_calls; }};
  between_calls = 0;
  int looks = 0;
  EXPECT_TRUE(Waiter(policy).spin([&] { return ++looks == 3; }));
  EXPECT_EQ(between_calls, 0);
}

TEST(Waiter, LooksCloselyForAWhile) {
  const WaitPolicy policy{.spin = milliseconds(1), .between = [] { ++between_calls; }};
  between_calls = 0;
  int looks = 0;
  const auto never = [&] { return ++looks == 0; };
  EXPECT_FALSE(Waiter(policy).spin(never));
  EXPECT_EQ(looks, between_calls);
  EXPECT_GE(looks, 50);
}

TEST(Waiter, PausesGrow) {
  const WaitPolicy long_spin{.spin = hours(1)};
  Waiter close(long_spin);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(close.pause());

  const WaitPolicy no_spin{.nap = microseconds(1)};
  Waiter napping(no_spin);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(napping.pause());
}

TEST(Waiter, LooksCloselyAgainWhenSomethingMoves) {
  const WaitPolicy policy{.spin = milliseconds(1), .nap = microseconds(1)};
  Waiter waiter(policy, milliseconds(1));
  while (!waiter.pause()) continue;
  EXPECT_TRUE(waiter.expired());
  waiter.restart(hours(1));
  EXPECT_FALSE(waiter.pause());  // the first: no time has passed
  EXPECT_FALSE(waiter.expired());
  EXPECT_TRUE(waiter.expires_within(hours(1)));
}

TEST(Waiter, TimeCountsFromTheFirstPause) {
  const WaitPolicy policy{.nap = milliseconds(1)};
  Waiter waiter(policy, milliseconds(30));
  EXPECT_FALSE(waiter.expired());
  EXPECT_EQ(waiter.waited(), milliseconds(0));
  int dues = 0;
  while (!waiter.expired()) {
    waiter.pause();
    if (waiter.due(milliseconds(10))) ++dues;
  }
  EXPECT_GE(waiter.waited(), milliseconds(30));
  EXPECT_GE(dues, 1);
  EXPECT_LE(dues, static_cast<int>(waiter.waited() / milliseconds(10)));
}

TEST(Waiter, AnInterruptEndsANapThatMayBeInterrupted) {
  const InterruptCheck check([] { throw std::runtime_error("interrupted"); });
  const WaitPolicy policy{.nap = InterruptCheck::kInterval};
  EXPECT_THROW(Waiter(policy).pause(), std::runtime_error);

  const WaitPolicy deaf{.nap = InterruptCheck::kInterval, .interruptible = false};
  EXPECT_TRUE(Waiter(deaf).pause());
}

TEST(Waiter, ANapCanBeASleepOfTheCallersOwn) {
  const WaitPolicy policy{.nap = hours(1)};
  WaitPolicy::Duration limit{};
  Waiter(policy).nap([&](auto given) { limit = given; });  // something else has ended it
  EXPECT_EQ(limit, hours(1));
}

}  // namespace
}  // namespace tutti
