// What keeps a wait for long messages over a connection from napping.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "streams_fixture.hpp"

namespace tutti::mpi {
namespace {

using test::bytes;
using test::Bytes;

/** The test sends what comes, so it says how much that is at a time. */
class FlowingStreams : public test::StreamsTest {
 protected:
  static constexpr std::size_t kAtOnce = 100'000;
  static constexpr std::size_t kLength = 20 * kAtOnce;

  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    other_end_ = Socket(ends[0]);
    right_ = test::streams_with(0, Socket(ends[1]));
    receive(come_);
    const std::uint64_t header = std::uint64_t{kLength} << 8U;
    ASSERT_EQ(::send(other_end_.get(), &header, sizeof header, 0), 8);
    right_->progress();
  }
  /** Whether they flow after another part. */
  bool flow() {
    const std::byte* const part = sent_.data() + part_++ * kAtOnce;
    EXPECT_EQ(::send(other_end_.get(), part, kAtOnce, 0), static_cast<ssize_t>(kAtOnce));
    for (int i = 0; i < 10; ++i) right_->progress();
    return right_->are_flowing();
  }

  Socket other_end_;
  Bytes sent_ = bytes(kLength, 1);
  Bytes come_ = Bytes(kLength);
  std::size_t part_ = 0;
};

TEST_F(FlowingStreams, OnceThereAreManyBytesSinceTheyLastDid) {
  EXPECT_FALSE(right_->are_flowing());
  for (int time = 0; time < 3; ++time) {
    EXPECT_FALSE(flow());
    EXPECT_FALSE(flow());
    EXPECT_TRUE(flow());
    EXPECT_FALSE(right_->are_flowing());
  }
}

TEST_F(FlowingStreams, ANapForgetsWhatHasComeBefore) {
  EXPECT_FALSE(flow());
  EXPECT_FALSE(flow());
  right_->note_nap();
  EXPECT_FALSE(flow());
  EXPECT_FALSE(flow());
  EXPECT_TRUE(flow());
}

}  // namespace
}  // namespace tutti::mpi
