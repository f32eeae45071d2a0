// Calls that nobody answers, and such as somebody does.
#include "comm/mpi/meeting/unanswered.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/sockets/socket.hpp"
#include "tutti/error.hpp"
#include "unit/tcp_pair.hpp"

namespace tutti::mpi {
namespace {

const auto kStart = UnansweredCalls::Clock::now();
constexpr auto kAtTheEnd = UnansweredCalls::kPatience;
const Address kNode = htonl(0x7F000002);  // 127.0.0.2

/** Listens at kNode with room for one caller, who is there: nobody else gets an answer. At a port
 * of the kernel's choice, unless one is named, which it may not get: its port is 0 then. */
class Busy {
 public:
  explicit Busy(std::uint16_t port = 0)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = kNode;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    if (::bind(listener_.get(), address, size) != 0) return;
    EXPECT_EQ(::listen(listener_.get(), 0), 0);
    EXPECT_EQ(::getsockname(listener_.get(), address, &size), 0);
    port_ = ntohs(at.sin_port);
    first_ = start_connecting(kNode, port_);
    while (connecting_state(first_) == Connecting::under_way) {
    }
  }
  std::uint16_t port() const { return port_; }
  /** The one who was there is no more. */
  void hang_up() { first_ = Socket(); }
  /** Whether `call` is answered once there is room: the kernel asks again after a second. */
  bool answer(const Socket& call) {
    return soon([&] {
      if (Socket one = accept_from(listener_)) answered_.push_back(std::move(one));
      return connecting_state(call) == Connecting::done;
    });
  }
  /** Whether it is refused, likewise. */
  bool refuse(const Socket& call) {
    listener_ = Socket();
    return soon([&] { return connecting_state(call) == Connecting::failed; });
  }

 private:
  Socket listener_;
  std::uint16_t port_ = 0;
  Socket first_;
  std::vector<Socket> answered_;
};

TEST(UnansweredCalls, IsNamedAfterAWhile) {
  Busy busy;
  busy.hang_up();
  const Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  unanswered.look(kStart + kAtTheEnd - std::chrono::milliseconds(1));
  try {
    unanswered.look(kStart + kAtTheEnd);
    FAIL() << "nobody has answered";
  } catch (const CommunicationError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("no answer from 127.0.0.2 to "), 0U) << text;
    EXPECT_NE(text.find(" by lo (127.0.0.1) for 4.0 s: "), std::string::npos) << text;
  }
}

TEST(UnansweredCalls, NoneIsNamedThatIsAnsweredLaterNorOnceItIsClosedAgain) {
  Busy busy;
  busy.hang_up();
  Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls while_there;
  UnansweredCalls afterwards;
  while_there.look(kStart);
  afterwards.look(kStart);
  ASSERT_TRUE(busy.answer(calls));
  EXPECT_NO_THROW(while_there.look(kStart + kAtTheEnd));
  calls = Socket();
  EXPECT_NO_THROW(afterwards.look(kStart + kAtTheEnd));
}

TEST(UnansweredCalls, NoneIsNamedThatIsRefusedLater) {
  Busy busy;
  busy.hang_up();
  const Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  ASSERT_TRUE(busy.refuse(calls));
  EXPECT_NO_THROW(unanswered.look(kStart + kAtTheEnd));
}

TEST(UnansweredCalls, WhoEndsACallAndBeginsAnotherHasTimeAnew) {
  Busy busy;
  busy.hang_up();
  UnansweredCalls unanswered;
  Socket calls = start_connecting(kNode, busy.port());
  unanswered.look(kStart);
  calls = start_connecting(kNode, busy.port());
  EXPECT_NO_THROW(unanswered.look(kStart + kAtTheEnd));
  EXPECT_THROW(unanswered.look(kStart + 2 * kAtTheEnd), CommunicationError);
}

/** Whether the kernel has sent the first packet once more. */
bool asked_again(const Socket& call) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(call.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_retransmits > 0;
}

TEST(UnansweredCalls, IsNamedThoughTheKernelHasGivenItUpMeanwhile) {
  Busy busy;
  busy.hang_up();
  Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  ASSERT_TRUE(soon([&] { return asked_again(calls); }));
  unanswered.look(kStart + std::chrono::seconds(1));
  calls = Socket();
  EXPECT_THROW(unanswered.look(kStart + kAtTheEnd), CommunicationError);
}

TEST(UnansweredCalls, ThoseOfOtherProcessesDoNotCount) {
  Busy busy;
  busy.hang_up();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Socket calls = start_connecting(kNode, busy.port());
    if (::write(pipe[1], "", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ASSERT_GT(child, 0);
  ::close(pipe[1]);
  char byte = 0;
  EXPECT_EQ(::read(pipe[0], &byte, 1), 1);
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  EXPECT_NO_THROW(unanswered.look(kStart + kAtTheEnd));
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(pipe[0]);
}

TEST(UnansweredCalls, ThoseToPortsOfServersDoNotCount) {
  Busy busy(1023);
  if (busy.port() == 0) GTEST_SKIP() << "port 1023 is not to be had: nothing was tested";
  busy.hang_up();
  const Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  EXPECT_NO_THROW(unanswered.look(kStart + kAtTheEnd));
}

TEST(UnansweredCalls, WhoIsConnectedOtherwiseIsLedTo) {
  const Busy busy;
  const Socket calls = start_connecting(kNode, busy.port());
  UnansweredCalls unanswered;
  unanswered.look(kStart);
  EXPECT_NO_THROW(unanswered.look(kStart + kAtTheEnd));
}

}  // namespace
}  // namespace tutti::mpi
