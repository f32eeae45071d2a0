// How leaders come to connections: who is late, who is a stranger, and why there is none.
#include "comm/mpi/meeting/meeting.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/system.hpp"
#include "comm/mpi/meeting/named_endpoint.hpp"
#include "support/few_descriptors.hpp"
#include "unit/tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using namespace std::chrono_literals;

Address address_of(const char* text) { return resolve(std::string(text) + ":0").addresses.front(); }

/** Host 0 calls host 1, which listens at 127.0.0.2 alone. */
class MeetingTest : public ::testing::Test {
 protected:
  MeetingTest() {
    std::uint16_t port = 0;
    { const Socket free = listen_anywhere(port); }
    listener_ = listen_at(resolve("127.0.0.2:" + std::to_string(port)));
    fill_with_random(caller_.token, "a test");
    fill_with_random(called_.token, "a test");
    called_.port = caller_.port = port;
    offer({"127.0.0.2"});
    there_.push_back({.host = 0, .line = Line::hosts, .endpoint = caller_});
  }
  /** The addresses that host 1 names. */
  void offer(const std::vector<const char*>& addresses) {
    called_.address_count = 0;
    for (const char* const one : addresses) {
      called_.addresses[called_.address_count++] = address_of(one);
    }
    here_ = {.host = 1, .line = Line::hosts, .endpoint = called_};
  }
  bool are_connected() const { return here_.socket && there_.front().socket; }
  /** Whether both ends come to a connection, if they go on. */
  bool meet(Connector& connector, Acceptor& acceptor) const {
    return soon([&] {
      acceptor.step();
      connector.step();
      return are_connected();
    });
  }

  Endpoint caller_;
  Endpoint called_;
  Socket listener_;
  Peer here_;
  std::vector<Peer> there_;
};

TEST_F(MeetingTest, WhoIsCalledMayLookLate) {
  Connector connector(here_, caller_, 0);
  ASSERT_TRUE(soon([&] {
    connector.step();
    return here_.has_heard;
  }));
  for (int i = 0; i < 100; ++i) connector.step();
  EXPECT_FALSE(are_connected());
  Acceptor acceptor(there_, called_, listener_);
  EXPECT_TRUE(meet(connector, acceptor));
}

TEST_F(MeetingTest, AMachineWithOneOfTheAddressesKeepsNobody) {
  const Socket silent = listen_at(resolve("127.0.0.3:" + std::to_string(called_.port)));
  for (const auto& order : {std::vector{"127.0.0.2", "127.0.0.3", "127.0.0.4"},
                            std::vector{"127.0.0.4", "127.0.0.3", "127.0.0.2"}}) {
    offer(order);
    there_.front().socket = {};
    Connector connector(here_, caller_, 0);
    Acceptor acceptor(there_, called_, listener_);
    EXPECT_TRUE(meet(connector, acceptor));
  }
}

TEST_F(MeetingTest, StrangersWhoSayNothingKeepNobody) {
  std::vector<Socket> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(start_connecting(called_.addresses.front(), called_.port));
    ASSERT_TRUE(soon([&] { return connecting_state(silent.back()) != Connecting::under_way; }));
  }
  Connector connector(here_, caller_, 0);
  Acceptor acceptor(there_, called_, listener_);
  EXPECT_TRUE(meet(connector, acceptor));
}

TEST_F(MeetingTest, KnowsWhetherSomebodyListens) {
  offer({"127.0.0.4"});
  Connector connector(here_, caller_, 0);
  for (int i = 0; i < 100; ++i) connector.step();
  EXPECT_FALSE(here_.has_heard);
  EXPECT_EQ(here_.error, 0);
}

TEST_F(MeetingTest, KnowsThatThereAreNoDescriptors) {
  {
    const test::FewDescriptors none(0);
    const Connector connector(here_, caller_, 0);
    EXPECT_EQ(here_.error, EMFILE);
  }
  here_.error = 0;
  Connector connector(here_, caller_, 0);
  ASSERT_TRUE(soon([&] {
    connector.step();
    return here_.has_heard;
  }));
  Acceptor acceptor(there_, called_, listener_);
  {
    const test::FewDescriptors none(0);
    acceptor.step();
  }
  EXPECT_EQ(acceptor.error(), EMFILE);
  EXPECT_FALSE(are_connected());
  EXPECT_TRUE(meet(connector, acceptor));  // there are some again
}

}  // namespace
}  // namespace tutti::mpi
