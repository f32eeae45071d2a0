// Messages of all lengths over TCP connections, also where the kernel paces them.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "streams_fixture.hpp"
#include "tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using test::bytes;
using test::Bytes;

class StreamsOfLengthsTest : public test::StreamsTest {
 protected:
  void exchange_all_lengths();
};

/** Whether the kernel does. */
bool control_congestion(const Socket& socket, std::string_view how) {
  return ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, how.data(),
                      static_cast<socklen_t>(how.size())) == 0;
}

/** Sends messages of all lengths, and looks what arrives. */
void StreamsOfLengthsTest::exchange_all_lengths() {
  const std::array<std::size_t, 16> lengths{1,  8,          4096, 4097, 61'440, 3,      500'000, 64,
                                            64, 20'000'000, 7,    5,    16'888, 16'888, 16'889,  9};
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
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto ends = [&](Streams& streams, Wire::Posted posted) {
    do {
      move();
      if (streams.take_ended(posted)) return true;
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  };
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_TRUE(Streams::is_one(sends[i]));
    ASSERT_TRUE(ends(*left_, sends[i])) << i;
    ASSERT_TRUE(ends(*right_, receives[i])) << i;
    EXPECT_TRUE(std::equal(sent[i].begin(), sent[i].end(), come[i].begin())) << i;
  }
}

TEST_F(StreamsOfLengthsTest, MessagesOfAllLengthsArriveInTheirOrder) { exchange_all_lengths(); }

/** Of a connection that paces a call gives the kernel less. */
TEST_F(StreamsOfLengthsTest, MessagesOfAllLengthsArriveInTheirOrderWherePacketsArePaced) {
  auto ends = tcp_pair();
  for (const Socket& end : ends) {
    EXPECT_TRUE(control_congestion(end, "reno"));
    EXPECT_FALSE(paces(end));
    if (!control_congestion(end, "bbr")) GTEST_SKIP() << "this kernel has no BBR";
    EXPECT_TRUE(paces(end));
  }
  left_ = test::streams_with(1, std::move(ends[0]));
  right_ = test::streams_with(0, std::move(ends[1]));
  exchange_all_lengths();
}

/** A socket of this kind takes all that a call gives it, or nothing: no call tells by having moved
 * less than it was given that a message is under way. */
TEST_F(StreamsOfLengthsTest, WhatCallsThatGiveLittleHaveMovedIsTold) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  left_ = test::streams_with(1, Socket(ends[0]), 1024);
  right_ = test::streams_with(0, Socket(ends[1]), 1024);
  exchange_all_lengths();
  left_->have_moved();
  const Bytes unread = bytes(16 << 20, 1);  // more than the kernel takes
  const Wire::Posted posted = send(unread);
  EXPECT_TRUE(left_->have_moved());
  EXPECT_FALSE(left_->take_ended(posted));
  left_->progress();
  EXPECT_FALSE(left_->have_moved());
}

}  // namespace
}  // namespace tutti::mpi
