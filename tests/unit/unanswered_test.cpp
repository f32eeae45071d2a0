// Calls that nobody answers, and such as somebody does.
#include "comm/mpi/unanswered.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/mpi/socket.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

const auto kStart = UnansweredCalls::Clock::now();
constexpr auto kAtTheEnd = UnansweredCalls::kPatience;
constexpr Address kNode = 0x0200007F;  // 127.0.0.2 on a machine that stores low bytes first

/** Listens at kNode with room for one caller, who is there: nobody else gets an answer. */
class Busy {
 public:
  Busy() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = kNode;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(listener_.get(), address, size), 0);
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

 private:
  Socket listener_;
  std::uint16_t port_ = 0;
  Socket first_;
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

TEST(UnansweredCalls, AlsoIfTheKernelHasGivenItUp) {
  Busy busy;
  busy.hang_up();
  UnansweredCalls unanswered;
  {
    const Socket calls = start_connecting(kNode, busy.port());
    unanswered.look(kStart);
  }
  EXPECT_THROW(unanswered.look(kStart + kAtTheEnd), CommunicationError);
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
