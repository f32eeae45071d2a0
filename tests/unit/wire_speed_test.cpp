// Whether a wire is fast, by a clock that tells what the test wants.
#include "comm/mpi/meeting/wire_speed.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "unit/hand.hpp"
#include "unit/tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using namespace std::chrono_literals;

/** This host sends to the next one, or does not; nobody sends to it. */
class WireSpeedTest : public ::testing::Test {
 protected:
  /** Both ends go on until `holds`; time moves by `later` each time. */
  template <class Holds>
  bool step_until(WireSpeed& sender, WireSpeed& receiver, std::chrono::microseconds later,
                  const Holds& holds) {
    return soon([&] {
      sender.step();
      receiver.step();
      hand_.sleep(later);
      return holds();
    });
  }

  std::array<Socket, 2> ends_ = tcp_pair();
  Socket none_;
  test::Hand hand_;
};

TEST_F(WireSpeedTest, IsFastIfAllOfATestIsThereInTime) {
  WireSpeed sender(ends_[0], none_, hand_);
  WireSpeed receiver(none_, ends_[1], hand_);
  EXPECT_FALSE(sender.is_fast());
  ASSERT_TRUE(step_until(sender, receiver, 0us, [&] { return sender.is_done(); }));
  EXPECT_TRUE(sender.is_fast());
  ASSERT_TRUE(step_until(sender, receiver, 0us, [&] { return receiver.is_done(); }));
  EXPECT_FALSE(receiver.is_fast()) << "it has sent nothing";
}

TEST_F(WireSpeedTest, IsTestedAgainUntilItIsFastOnce) {
  WireSpeed sender(ends_[0], none_, hand_);
  WireSpeed receiver(none_, ends_[1], hand_);
  const std::uint64_t before = state_of(ends_[0]).acknowledged;
  const auto twice = [&] {
    return state_of(ends_[0]).acknowledged - before >= 2 * WireSpeed::kBytes;
  };
  ASSERT_TRUE(step_until(sender, receiver, WireSpeed::kFast + 1us, twice));
  EXPECT_FALSE(sender.is_done());
  EXPECT_FALSE(sender.is_fast());
  ASSERT_TRUE(step_until(sender, receiver, 0us, [&] { return sender.is_done(); }));
  EXPECT_TRUE(sender.is_fast());
}

TEST_F(WireSpeedTest, IsNotFastWhereNobodyListens) {
  WireSpeed alone(none_, none_, hand_);
  EXPECT_TRUE(alone.is_done());
  EXPECT_FALSE(alone.is_fast());
  ends_[1] = {};
  WireSpeed sender(ends_[0], none_, hand_);
  ASSERT_TRUE(step_until(sender, alone, 0us, [&] { return sender.is_done(); }));
  EXPECT_FALSE(sender.is_fast());
}

/** The system's clock, a thousand times slower: no machine is too busy for what is fast by it. */
class SlowClock final : public TimeSource {
 public:
  Clock::time_point now() const override {
    return Clock::time_point(system().now().time_since_epoch() / 1000);
  }
  void sleep(Clock::duration /*time*/) const override {}
};

TEST_F(WireSpeedTest, IsFoundFastByALeader) {
  std::vector<Peer> peers(1);
  peers[0].line = Line::test;
  peers[0].host = 1;
  peers[0].socket = std::move(ends_[0]);
  std::thread next([this] {
    WireSpeed receiver(none_, ends_[1]);
    soon([&] { return receiver.step(), receiver.is_done(); });
  });
  EXPECT_TRUE(test_wire(peers, 0, 3, SlowClock()));
  next.join();
}

/** Also if its own end has room for all. */
TEST_F(WireSpeedTest, WhoDoesNotReadHoldsUpNobody) {
  std::vector<Peer> peers(2);
  peers[0].line = Line::leaders;
  peers[1].line = Line::test;
  for (Peer& peer : peers) peer.host = 1;
  peers[1].socket = std::move(ends_[0]);
  test_wire(peers, 0, 3);
  EXPECT_FALSE(peers[1].socket);
}

/** A part of a ring of three: host 1 is next to host 0, and host 2 before it. */
TEST_F(WireSpeedTest, IsOfTheNextHost) {
  std::array<Socket, 2> others = tcp_pair();
  std::vector<Peer> peers(2);
  for (Peer& peer : peers) peer.line = Line::test;
  peers[0].host = 1;
  peers[1].host = 2;
  peers[0].socket = std::move(ends_[0]);
  peers[1].socket = std::move(others[0]);
  test_wire(peers, 0, 3);
  std::byte byte{};
  EXPECT_TRUE(soon([&] { return receive_exactly(ends_[1], {&byte, 1}) == Received::all; }));
  EXPECT_TRUE(soon([&] { return receive_exactly(others[1], {&byte, 1}) == Received::closed; }));
}

}  // namespace
}  // namespace tutti::mpi
