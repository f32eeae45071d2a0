// Messages over TCP connections: in their order, where they belong, and nothing beyond a stop.
#include "comm/mpi/streams.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::mpi {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kKind = Wire::Traffic::collective;

/** `length` bytes that differ from those of other seeds. */
Bytes bytes(std::size_t length, unsigned seed) {
  Bytes made(length);
  for (std::size_t i = 0; i < length; ++i) {
    made[i] = static_cast<std::byte>((i * 7 + i / 251 + std::size_t{seed} * 31) & 255U);
  }
  return made;
}

/** Two ends of one connection: what is rank 1 at one is rank 0 at the other. */
class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    left_ = with(1, Socket(ends[0]));
    right_ = with(0, Socket(ends[1]));
  }
  static std::unique_ptr<Streams> with(int rank, Socket socket) {
    std::vector<Streams::Connection> connections;
    connections.push_back({rank, kKind, std::move(socket)});
    return std::make_unique<Streams>(std::move(connections));
  }
  Wire::Posted send(const Bytes& data) {
    return left_->send(data.data(), std::ssize(data), 1, kKind);
  }
  Wire::Posted receive(Bytes& data) {
    return right_->receive(data.data(), std::ssize(data), 0, kKind);
  }
  /** Moves what both ends can move. */
  void move() {
    for (int i = 0; i < 100; ++i) {
      left_->progress();
      right_->progress();
    }
  }

  std::unique_ptr<Streams> left_;
  std::unique_ptr<Streams> right_;
};

TEST_F(StreamsTest, CarryWhatTheyHaveConnectionsFor) {
  EXPECT_TRUE(left_->reaches(1, kKind));
  EXPECT_FALSE(left_->reaches(0, kKind));
  EXPECT_FALSE(left_->reaches(2, kKind));
  EXPECT_FALSE(left_->reaches(1, Wire::Traffic::ahead));
  EXPECT_FALSE(left_->reaches(1, Wire::Traffic::point_to_point));
}

TEST_F(StreamsTest, MessagesOfAllLengthsArriveInTheirOrder) {
  const std::array<std::size_t, 8> lengths{1, 8, 4096, 4097, 61'440, 3, 500'000, 64};
  std::vector<Bytes> sent;
  std::vector<Bytes> come;
  std::vector<Wire::Posted> sends;
  std::vector<Wire::Posted> receives;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sent.push_back(bytes(lengths[i], static_cast<unsigned>(i)));
    // Some receives have room for more than comes, and so see the beginning of the next message.
    come.emplace_back(lengths[i] + (i % 2 == 0 ? 0 : 70'000));
  }
  for (const Bytes& one : sent) sends.push_back(send(one));
  for (Bytes& one : come) receives.push_back(receive(one));
  move();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_TRUE(Streams::is_one(sends[i]));
    EXPECT_TRUE(left_->take_ended(sends[i])) << i;
    EXPECT_TRUE(right_->take_ended(receives[i])) << i;
    EXPECT_TRUE(std::equal(sent[i].begin(), sent[i].end(), come[i].begin())) << i;
  }
}

TEST_F(StreamsTest, AMessageWaitsForItsReceive) {
  const Bytes first = bytes(100, 1);
  const Bytes second = bytes(200, 2);
  send(first);
  send(second);
  Bytes come(5000);
  const auto posted = receive(come);
  move();
  EXPECT_TRUE(right_->take_ended(posted));
  Bytes later(200);
  const auto next = receive(later);
  EXPECT_FALSE(right_->take_ended(next));
  move();
  EXPECT_TRUE(right_->take_ended(next));
  EXPECT_EQ(later, second);
}

TEST_F(StreamsTest, AWithdrawnReceiveGetsNothing) {
  std::array<Bytes, 3> come{Bytes(10), Bytes(10), Bytes(10)};
  const auto first = receive(come[0]);
  const auto second = receive(come[1]);
  const auto third = receive(come[2]);
  right_->withdraw(first);
  right_->withdraw(third);
  const Bytes sent = bytes(10, 1);
  send(sent);
  move();
  EXPECT_TRUE(right_->take_ended(second));
  EXPECT_EQ(come[1], sent);
  EXPECT_EQ(come[0], Bytes(10));
  EXPECT_EQ(come[2], Bytes(10));
}

TEST_F(StreamsTest, WhatWasSentArrivesThoughItsSenderIsGone) {
  const Bytes sent = bytes(1000, 1);
  send(sent);
  left_.reset();
  EXPECT_FALSE(right_->take_ended(right_->send(sent.data(), 10, 0, kKind)));  // to nobody
  Bytes come(1000);
  Bytes more(10);
  const auto first = receive(come);
  const auto second = receive(more);
  for (int i = 0; i < 10; ++i) right_->progress();
  EXPECT_TRUE(right_->take_ended(first));
  EXPECT_FALSE(right_->take_ended(second));
  EXPECT_EQ(come, sent);
}

TEST_F(StreamsTest, AMessageThatIsTooLongIsItsSendersMistake) {
  const Bytes sent = bytes(11, 1);
  send(sent);
  Bytes come(10);
  const auto posted = receive(come);
  move();
  EXPECT_FALSE(right_->take_ended(posted));
  EXPECT_EQ(right_->mistaken(), 0);
}

TEST_F(StreamsTest, NothingMovesOnceTheyAreStopped) {
  const Bytes sent = bytes(10, 1);
  send(sent);
  Bytes come(10);
  receive(come);
  right_->stop();
  move();
  EXPECT_EQ(come, Bytes(10));
}

}  // namespace
}  // namespace tutti::mpi
