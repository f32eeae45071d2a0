// What ends a nap in a wait for messages over connections.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "streams_fixture.hpp"

namespace tutti::mpi {
namespace {

using test::Bytes;
using test::kKind;

using Clock = std::chrono::steady_clock;
constexpr std::chrono::hours kEndless{24};

/** Sends `length` bytes of a message of `of` bytes, from its beginning on. */
void send_part(const Socket& to, std::size_t length, std::size_t of,
               Wire::Traffic traffic = kKind) {
  const std::uint64_t header = std::uint64_t{of} << 8U | static_cast<std::uint64_t>(traffic);
  ASSERT_EQ(::send(to.get(), &header, sizeof header, 0), 8);
  const Bytes part(length);
  ASSERT_EQ(::send(to.get(), part.data(), length, 0), static_cast<ssize_t>(length));
}

/** Whether naps last as long as they may, whatever has come. */
bool naps_are_whole(Streams& streams) {
  constexpr std::chrono::milliseconds kNap{1};
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    streams.nap(kNap);
    if (Clock::now() - start < kNap) return false;
  }
  return true;
}

/** Naps of the right end, for which the left one, of which a test has the socket, is a byte stream.
 */
class NapsOfStreams : public test::StreamsTest {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    other_end_ = Socket(ends[0]);
    right_ = test::streams_with(0, Socket(ends[1]));
  }
  void send_part(std::size_t length, std::size_t of, Wire::Traffic traffic = kKind) {
    mpi::send_part(other_end_, length, of, traffic);
  }
  bool naps_are_whole() { return mpi::naps_are_whole(*right_); }

  Socket other_end_;
  Bytes come_ = Bytes(100'000);
};

TEST_F(NapsOfStreams, EndAsSomethingComes) {
  for (int time = 0; time < 3; ++time) {
    const Wire::Posted posted = receive(come_);
    send_part(100, 100);
    right_->nap(kEndless);
    right_->progress();
    EXPECT_TRUE(right_->take_ended(posted));
  }
}

TEST_F(NapsOfStreams, EndAsANoteComes) {
  std::array<std::byte, Wire::kShort> room{};
  const auto take = [&] { return right_->take(room.data(), Wire::kShort, Wire::Traffic::note, 0); };
  for (int time = 0; time < 3; ++time) {
    EXPECT_FALSE(take());
    send_part(100, 100, Wire::Traffic::note);
    right_->nap(kEndless);
    EXPECT_TRUE(take());
  }
}

TEST_F(NapsOfStreams, AreWholeWhereNothingIsAwaited) {
  send_part(100, 100);
  EXPECT_TRUE(naps_are_whole());
}

/** It may stay where it is for long. */
TEST_F(NapsOfStreams, AreEndedOnceByWhatIsOfAnotherKind) {
  const Wire::Posted posted = receive(come_);
  send_part(50'000, 50'000, Wire::Traffic::note);
  right_->nap(kEndless);
  right_->progress();  // reads a part of it
  right_->nap(kEndless);
  for (int time = 0; time < 3; ++time) {
    right_->progress();
    EXPECT_TRUE(naps_are_whole());
  }
  EXPECT_FALSE(right_->take_ended(posted));
}

/** Or each part would end one, which a slow wire brings. */
TEST_F(NapsOfStreams, AreWholeWithinAMessage) {
  receive(come_);
  send_part(5000, come_.size());
  right_->progress();
  const Bytes more(100);
  ASSERT_EQ(::send(other_end_.get(), more.data(), more.size(), 0), 100);
  EXPECT_TRUE(naps_are_whole());
}

TEST_F(NapsOfStreams, AreWholeOnceTheOtherEndHasGone) {
  receive(come_);
  other_end_ = Socket();
  right_->nap(kEndless);
  EXPECT_TRUE(naps_are_whole());
  right_->progress();
  EXPECT_TRUE(naps_are_whole());
}

TEST_F(NapsOfStreams, AreWholeAfterAStop) {
  receive(come_);
  send_part(100, 100);
  right_->stop();
  EXPECT_TRUE(naps_are_whole());
}

/** Naps of one end of connections to ranks 0, 1, ..., of which a test has the others. */
class NapsOfSeveralStreams : public ::testing::Test {
 protected:
  void connect(int count) {
    std::vector<Streams::Connection> connections;
    for (int rank = 0; rank < count; ++rank) {
      std::array<int, 2> ends{};
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
      other_ends_.emplace_back(ends[0]);
      Socket own(ends[1]);
      const std::int64_t most = Streams::most_at_once(own);
      connections.push_back({rank, kKind, std::move(own), most});
    }
    streams_.emplace(std::move(connections));
  }
  Wire::Posted receive(int rank) { return streams_->receive(come_.data(), kBytes, rank, kKind); }
  void send_from(int rank) {
    send_part(other_ends_[static_cast<std::size_t>(rank)], kBytes, kBytes);
  }

  static constexpr std::int64_t kBytes = 100;
  std::vector<Socket> other_ends_;
  std::optional<Streams> streams_;
  Bytes come_ = Bytes(kBytes);
};

TEST_F(NapsOfSeveralStreams, EndAsAnyOfThemBringsSomething) {
  constexpr int kMost = 32;
  connect(kMost);
  std::vector<Wire::Posted> posted;
  for (int rank = 0; rank < kMost; ++rank) posted.push_back(receive(rank));
  for (const int rank : {kMost - 1, 0, 7}) {
    send_from(rank);
    streams_->nap(kEndless);
    streams_->progress();
    EXPECT_TRUE(streams_->take_ended(posted[static_cast<std::size_t>(rank)]));
  }
}

TEST_F(NapsOfSeveralStreams, AreWholeIfOthersBringSomething) {
  connect(3);
  receive(0);
  receive(2);
  send_from(1);
  EXPECT_TRUE(naps_are_whole(*streams_));
}

TEST_F(NapsOfSeveralStreams, AreWholeIfMoreAreAwaitedThanAreLookedAt) {
  connect(33);
  for (int rank = 0; rank < 33; ++rank) receive(rank);
  send_from(1);
  EXPECT_TRUE(naps_are_whole(*streams_));
}

}  // namespace
}  // namespace tutti::mpi
