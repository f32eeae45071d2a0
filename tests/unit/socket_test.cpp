// Sockets between processes: whole messages, and an end that no forked child puts off.
#include "comm/mpi/sockets/socket.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi/meeting/named_endpoint.hpp"
#include "comm/mpi/sockets/tcp_connection.hpp"
#include "unit/tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using namespace std::chrono_literals;

class SocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::uint16_t port = 0;
    const Socket listener = listen_anywhere(port);
    caller_ = start_connecting(loopback_address(), port);
    ASSERT_TRUE(caller_);
    ASSERT_TRUE(soon([&] { return connecting_state(caller_) == Connecting::done; }));
    ASSERT_TRUE(soon([&] { return bool(called_ = accept_from(listener)); }));
    ASSERT_TRUE(keep_alive(caller_));
  }

  Socket caller_;
  Socket called_;
};

int option(const Socket& socket, int which) {
  int value = 0;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, which, &value, &length), 0);
  return value;
}

/** Or one lost question would end it. */
TEST_F(SocketTest, WhatIsSilentForLongEndsNoSoonerThanAfterAllQuestions) {
  ASSERT_TRUE(keep_alive(caller_, 20s));
  EXPECT_EQ(option(caller_, TCP_KEEPIDLE), 20);
  EXPECT_GE(option(caller_, TCP_USER_TIMEOUT),
            (option(caller_, TCP_KEEPIDLE) +
             (option(caller_, TCP_KEEPCNT) - 1) * option(caller_, TCP_KEEPINTVL)) *
                1000);
}

TEST_F(SocketTest, TakesWholeMessages) {
  const std::array<std::byte, 5> sent{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                      std::byte{5}};
  std::array<std::byte, 5> received{};
  EXPECT_EQ(receive_exactly(called_, received), Received::too_few);
  ASSERT_TRUE(send_all(caller_, std::span(sent).first(2)));
  EXPECT_EQ(receive_exactly(called_, received), Received::too_few);
  ASSERT_TRUE(send_all(caller_, std::span(sent).subspan(2)));
  ASSERT_TRUE(soon([&] { return receive_exactly(called_, received) == Received::all; }));
  EXPECT_EQ(received, sent);
}

TEST_F(SocketTest, DropsWhatHasCome) {
  const std::vector<std::byte> sent(5000);
  ASSERT_TRUE(send_all(caller_, sent));
  std::vector<std::byte> all(sent.size());
  const auto there = [&] { return ::recv(called_.get(), all.data(), all.size(), MSG_PEEK); };
  ASSERT_TRUE(soon([&] { return there() == std::ssize(sent); }));
  discard_input(called_);
  EXPECT_EQ(there(), -1);
}

/** What the other kernel could not send before comes while it does. */
TEST_F(SocketTest, DropsNothingThatComesMeanwhile) {
  int room = 64 << 10;
  socklen_t length = sizeof room;
  ASSERT_EQ(::setsockopt(called_.get(), SOL_SOCKET, SO_RCVBUF, &room, length), 0);
  ASSERT_EQ(::getsockopt(called_.get(), SOL_SOCKET, SO_RCVBUF, &room, &length), 0);
  std::vector<std::byte> bytes(16 << 10);
  ssize_t sent = 0;
  for (ssize_t more = 0; more >= 0; sent += std::max<ssize_t>(more, 0)) {
    more = ::send(caller_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  ASSERT_GT(sent, 2 * room);
  discard_input(called_);
  caller_ = {};
  ssize_t dropped = sent;
  ASSERT_TRUE(soon([&] {
    ssize_t come = 0;
    while ((come = ::recv(called_.get(), bytes.data(), bytes.size(), 0)) > 0) dropped -= come;
    return come == 0;
  }));
  EXPECT_LE(dropped, room) << "of " << sent;
}

TEST_F(SocketTest, KnowsOfTheOtherEnd) {
  const std::byte byte{};
  const auto before = state_of(caller_).acknowledged;
  ASSERT_TRUE(send_all(caller_, {&byte, 1}));
  // Though nobody has read it.
  ASSERT_TRUE(soon([&] { return state_of(caller_).acknowledged == before + 1; }));
  EXPECT_LT(state_of(caller_).silence, 10'000U);
  EXPECT_FALSE(state_of(caller_).ended);
  called_ = {};
  EXPECT_TRUE(soon([&] { return state_of(caller_).ended; }));
  EXPECT_FALSE(state_of(caller_).given_up);
}

TEST_F(SocketTest, TakesLittleThatItCannotSend) {
  constexpr int kLimit = 64 << 10;
  ASSERT_TRUE(limit_unsent(caller_, kLimit));
  const std::vector<std::byte> bytes(16 << 10);
  std::uint64_t taken = 0;
  const auto fill = [&] {
    const auto before = taken;
    for (ssize_t more = 1; more > 0;) {
      more = ::send(caller_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (more > 0) taken += static_cast<std::uint64_t>(more);
    }
    return taken > before;
  };
  const auto acknowledged = state_of(caller_).acknowledged;
  for (int still = 0; still < 20;) {  // nobody reads
    still = fill() ? 0 : still + 1;
    std::this_thread::sleep_for(1ms);
  }
  // The kernel looks before it takes what it sends at once, up to 64 KiB.
  EXPECT_LE(taken - (state_of(caller_).acknowledged - acknowledged), 3U * kLimit);
}

TEST_F(SocketTest, ALineIsAnsweredByTheKernelUntilTheOtherEndIsClosed) {
  TcpLine line(std::make_shared<const Socket>(std::move(caller_)), TcpLine::Reader::none);
  std::optional<TcpLine> other(std::in_place, std::make_shared<const Socket>(std::move(called_)),
                               TcpLine::Reader::none);
  ASSERT_TRUE(line.ping());
  ASSERT_TRUE(soon([&] { return line.has_answered(); }));
  ASSERT_TRUE(line.ping());  // the other end will not have read that one
  ASSERT_TRUE(other->ping());
  ASSERT_TRUE(soon([&] { return line.has_answered() && other->has_answered(); }));
  EXPECT_LT(line.silence(), 10s);
  EXPECT_FALSE(line.has_ended());
  other.reset();
  EXPECT_TRUE(soon([&] { return line.has_ended(); }));
  EXPECT_FALSE(line.ping());
  EXPECT_TRUE(line.has_answered());
  EXPECT_EQ(line.silence(), 0s);
}

/** Drops whatever comes for `socket` before TCP sees it, as if its cable were cut. */
void cut_off(const Socket& socket) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

TEST_F(SocketTest, ProcessesOfAHostThatDoesNotAnswerHaveNotEnded) {
  const int patience = 2000;  // ms: as long as three attempts take
  ASSERT_EQ(::setsockopt(caller_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience),
            0);
  cut_off(called_);
  const auto line = std::make_shared<const Socket>(std::move(caller_));
  auto leaders = tcp_pair();
  const TcpConnection connection(std::make_shared<const Socket>(std::move(leaders[0])), line);
  const std::byte byte{};
  ASSERT_TRUE(send_all(*line, {&byte, 1}));
  ASSERT_TRUE(soon([&] { return state_of(*line).given_up; }));
  EXPECT_FALSE(connection.all_have_ended());
}

TEST_F(SocketTest, EndsWithItsProcessThoughAForkedChildLives) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ASSERT_GT(child, 0);
  caller_ = {};
  std::byte byte{};
  EXPECT_TRUE(soon([&] { return receive_exactly(called_, {&byte, 1}) == Received::closed; }));
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(SocketTest, AForkedChildLeavesAloneWhatHasItsNumbersNow) {
  const pid_t child = ::fork();
  if (child == 0) {  // the first sockets that it makes get the numbers that have become free
    const std::array<int, 2> numbers{caller_.get(), called_.get()};
    auto own = tcp_pair();
    const bool are_reused = std::all_of(own.begin(), own.end(), [&](const Socket& one) {
      return std::find(numbers.begin(), numbers.end(), one.get()) != numbers.end();
    });
    std::byte byte{1};
    const bool sent = send_all(own[0], {&byte, 1});
    discard_input(caller_);
    discard_input(called_);
    caller_ = {};
    called_ = {};
    const bool received = sent && soon([&] {
                            return receive_exactly(own[1], {&byte, 1}) == Received::all;
                          });
    ::_exit(!are_reused ? 3 : !received ? 2 : 0);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SocketTest, HalfAReportDoesNotKeepAConnectionOpen) {
  TcpConnection connection(std::make_shared<const Socket>(std::move(caller_)));
  constexpr std::byte kFailure{1};  // the first byte of one
  std::array<std::byte, 100> half{};
  half[0] = kFailure;
  ASSERT_TRUE(send_all(called_, half));
  using State = HostConnection::News::State;
  EXPECT_EQ(connection.receive().state, State::open);  // the rest may be under way
  called_ = {};
  EXPECT_TRUE(soon([&] { return connection.receive().state == State::ended; }));
}

TEST(Network, IsNotThatOfACopyOfTheMachine) {
  EXPECT_EQ(network_id("one"), network_id("one"));
  EXPECT_NE(network_id("one"), network_id("other"));
}

TEST_F(SocketTest, ItsPortIsForAServerThatComesLater) {
  sockaddr_in own{};
  socklen_t length = sizeof own;
  ASSERT_EQ(::getsockname(caller_.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
  const auto endpoint = resolve("127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
  EXPECT_TRUE(listen_at(endpoint));
  caller_ = {};  // the kernel keeps its port for a minute
  called_ = {};
  EXPECT_TRUE(listen_at(endpoint));
}

TEST(Socket, NobodyListens) {
  std::uint16_t port = 0;
  { const Socket listener = listen_anywhere(port); }
  const Socket socket = start_connecting(loopback_address(), port);
  EXPECT_TRUE(!socket || soon([&] { return connecting_state(socket) == Connecting::failed; }));
}

}  // namespace
}  // namespace tutti::mpi
