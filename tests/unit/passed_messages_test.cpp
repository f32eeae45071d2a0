// Messages over TCP connections that are sent on as they come.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "streams_fixture.hpp"
#include "tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using test::bytes;
using test::Bytes;
using test::kKind;

constexpr std::uint64_t header_of(std::size_t bytes) { return std::uint64_t{bytes} << 8U; }

/** Bytes that have come over a connection, and that nobody has read. */
int unread(int socket) {
  int there = -1;
  EXPECT_EQ(::ioctl(socket, FIONREAD, &there), 0);
  return there;
}

/** Ranks 0 to 2, of which each has a connection with the next. */
class PassedMessages : public ::testing::Test {
 protected:
  void SetUp() override { connect(tcp_pair(), tcp_pair()); }
  void connect(std::array<Socket, 2> first, std::array<Socket, 2> second) {
    std::vector<Streams::Connection> of_root;
    std::vector<Streams::Connection> of_middle;
    std::vector<Streams::Connection> of_last;
    to_middle_ = first[1].get();
    to_last_ = second[1].get();
    of_root.push_back({1, kKind, std::move(first[0])});
    of_middle.push_back({0, kKind, std::move(first[1])});
    of_middle.push_back({2, kKind, std::move(second[0])});
    of_last.push_back({1, kKind, std::move(second[1])});
    root_ = std::make_unique<Streams>(std::move(of_root));
    middle_ = std::make_unique<Streams>(std::move(of_middle));
    last_ = std::make_unique<Streams>(std::move(of_last));
  }
  Wire::Posted send(const Bytes& data) {
    return root_->send(data.data(), std::ssize(data), 1, kKind);
  }
  Wire::Passed pass_on(Bytes& data) {
    return middle_->pass_on(data.data(), std::ssize(data), 0, 2, kKind);
  }
  Wire::Posted receive(Bytes& data) {
    return last_->receive(data.data(), std::ssize(data), 1, kKind);
  }
  /** Moves what can be moved until `posted` has ended, for some seconds at most. */
  bool ends(Streams& streams, Wire::Posted posted) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    do {
      if (streams.take_ended(posted)) return true;
      for (Streams* const one : {root_.get(), middle_.get(), last_.get()}) one->progress();
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }

  int to_middle_ = -1;  // where the middle reads,
  int to_last_ = -1;    // and the last
  std::unique_ptr<Streams> root_;
  std::unique_ptr<Streams> middle_;
  std::unique_ptr<Streams> last_;
};

TEST_F(PassedMessages, OfAllLengthsArriveInTheirOrderAmongOthers) {
  const std::array<std::size_t, 8> lengths{1, 8, 4089, 4097, 3, 500'000, 64, 20'000'003};
  std::vector<Bytes> sent;
  std::vector<Bytes> here;
  std::vector<Bytes> come;
  std::vector<Wire::Posted> sends;
  std::vector<Wire::Passed> passed;
  std::vector<Wire::Posted> receives;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sent.push_back(bytes(lengths[i], static_cast<unsigned>(i)));
    here.emplace_back(lengths[i]);
    come.emplace_back(lengths[i]);
  }
  // Of the middle's own: they leave in the order in which all were posted.
  const Bytes own = bytes(700, 99);
  std::vector<Bytes> owns(lengths.size(), Bytes(own.size()));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sends.push_back(send(sent[i]));
    passed.push_back(pass_on(here[i]));
    receives.push_back(receive(come[i]));
    sends.push_back(middle_->send(own.data(), std::ssize(own), 2, kKind));
    receives.push_back(receive(owns[i]));
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    ASSERT_TRUE(ends(*root_, sends[2 * i])) << i;
    ASSERT_TRUE(ends(*middle_, passed[i].receive)) << i;
    ASSERT_TRUE(ends(*middle_, passed[i].send)) << i;
    ASSERT_TRUE(ends(*middle_, sends[2 * i + 1])) << i;
    ASSERT_TRUE(ends(*last_, receives[2 * i])) << i;
    ASSERT_TRUE(ends(*last_, receives[2 * i + 1])) << i;
    EXPECT_EQ(here[i], sent[i]) << i;
    EXPECT_EQ(come[i], sent[i]) << i;
    EXPECT_EQ(owns[i], own) << i;
  }
}

/** The root's message does not end here: its last part stays away. */
TEST_F(PassedMessages, LeaveBeforeTheyHaveComeAsAWhole) {
  constexpr std::size_t kLength = 1 << 20;
  auto ends_of_root = tcp_pair();
  const Socket root = std::move(ends_of_root[0]);
  connect({Socket(), std::move(ends_of_root[1])}, tcp_pair());
  const Bytes sent = bytes(kLength, 1);
  Bytes here(kLength);
  Bytes come(kLength);
  const Wire::Passed passed = pass_on(here);
  const Wire::Posted receive_of_last = receive(come);
  const std::uint64_t header = header_of(kLength);
  ASSERT_EQ(::send(root.get(), &header, sizeof header, 0), 8);
  ASSERT_TRUE(soon([&] { return unread(to_middle_) == 8; }));
  middle_->progress();
  EXPECT_EQ(unread(to_middle_), 0);
  EXPECT_EQ(unread(to_last_), 0);  // a length alone is not sent on
  ASSERT_EQ(::send(root.get(), sent.data(), 1000, 0), 1000);
  const auto has_come = [&](std::size_t length) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const auto end = static_cast<std::ptrdiff_t>(length);
    while (!std::equal(sent.begin(), sent.begin() + end, come.begin())) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      middle_->progress();
      last_->progress();
    }
    return true;
  };
  EXPECT_TRUE(has_come(1000));
  EXPECT_FALSE(middle_->take_ended(passed.receive));
  EXPECT_FALSE(middle_->take_ended(passed.send));
  EXPECT_FALSE(last_->take_ended(receive_of_last));
  for (std::size_t at = 1000; at < kLength; at += 54'321) {
    const std::size_t more = std::min<std::size_t>(54'321, kLength - at);
    ASSERT_EQ(::send(root.get(), sent.data() + at, more, 0), static_cast<ssize_t>(more));
    EXPECT_TRUE(has_come(at + more));
  }
  EXPECT_EQ(come, sent);
  EXPECT_TRUE(middle_->take_ended(passed.receive));
  EXPECT_TRUE(middle_->take_ended(passed.send));
  EXPECT_TRUE(last_->take_ended(receive_of_last));
}

/** Whatever the order is in which it looks after its connections. */
TEST_F(PassedMessages, LeaveAlongWithWhatIsHeldBackForThem) {
  auto ends_of_root = tcp_pair();
  auto ends_of_last = tcp_pair();
  const Socket root = std::move(ends_of_root[0]);
  const Socket last = std::move(ends_of_last[1]);
  std::vector<Streams::Connection> of_middle;
  const int to_middle = ends_of_root[1].get();
  of_middle.push_back({2, kKind, std::move(ends_of_last[0])});
  of_middle.push_back({0, kKind, std::move(ends_of_root[1])});
  Streams middle(std::move(of_middle));
  const Bytes sent = bytes(1000, 1);
  const Bytes own = bytes(100, 2);
  Bytes here(sent.size());
  const std::uint64_t header = header_of(sent.size());
  ASSERT_EQ(::send(root.get(), &header, sizeof header, 0), 8);
  ASSERT_EQ(::send(root.get(), sent.data(), sent.size(), 0), 1000);
  ASSERT_TRUE(soon([&] { return unread(to_middle) == 8 + 1000; }));
  middle.hold(true);
  middle.send(own.data(), std::ssize(own), 2, kKind);
  middle.pass_on(here.data(), std::ssize(here), 0, 2, kKind);
  middle.progress();
  EXPECT_EQ(here, sent);
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(::getsockopt(last.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_data_segs_in, 0);
  middle.hold(false);
  EXPECT_TRUE(soon([&] { return unread(last.get()) == 8 + 100 + 8 + 1000; }));
  length = sizeof info;
  ASSERT_EQ(::getsockopt(last.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_data_segs_in, 1);
}

TEST_F(PassedMessages, WaitForTheirTurnBehindWhatHasNotCome) {
  const Bytes sent = bytes(100'000, 1);
  const Bytes own = bytes(100, 2);
  Bytes here(sent.size());
  Bytes come(sent.size());
  Bytes later(own.size());
  const Wire::Passed passed = pass_on(here);
  const Wire::Posted send_of_own = middle_->send(own.data(), std::ssize(own), 2, kKind);
  const Wire::Posted first = receive(come);
  const Wire::Posted second = receive(later);
  for (int i = 0; i < 100; ++i) {
    middle_->progress();
    last_->progress();
  }
  EXPECT_FALSE(middle_->take_ended(send_of_own));
  send(sent);
  EXPECT_TRUE(ends(*last_, second));
  EXPECT_TRUE(ends(*last_, first));
  EXPECT_TRUE(ends(*middle_, passed.send));
  EXPECT_TRUE(ends(*middle_, send_of_own));
  EXPECT_EQ(come, sent);
  EXPECT_EQ(later, own);
}

/** Its length has been promised. */
TEST_F(PassedMessages, OneOfAnotherLengthIsItsSendersMistake) {
  for (const std::size_t length : {99U, 101U}) {
    connect(tcp_pair(), tcp_pair());
    const Bytes sent = bytes(length, 1);
    Bytes here(100);
    const Wire::Passed passed = pass_on(here);
    send(sent);
    EXPECT_TRUE(soon([&] {
      middle_->progress();
      return middle_->are_in_trouble();
    }));
    EXPECT_EQ(middle_->mistaken(), 0) << length;
    EXPECT_EQ(unread(to_last_), 0) << length;
    EXPECT_FALSE(middle_->take_ended(passed.receive));
    EXPECT_FALSE(middle_->take_ended(passed.send));
    EXPECT_EQ(here, Bytes(100));
  }
}

TEST_F(PassedMessages, WhatASenderLeavesUnfinishedStaysSo) {
  const Bytes sent = bytes(64 << 20, 1);
  Bytes here(sent.size());
  Bytes come(sent.size());
  const Wire::Passed passed = pass_on(here);
  const Wire::Posted receive_of_last = receive(come);
  send(sent);
  root_.reset();
  EXPECT_TRUE(soon([&] {  // what has come is sent on
    middle_->progress();
    last_->progress();
    return middle_->are_in_trouble() && come == here;
  }));
  EXPECT_NE(here, Bytes(sent.size()));
  EXPECT_NE(here, sent);
  EXPECT_FALSE(middle_->take_ended(passed.receive));
  EXPECT_FALSE(middle_->take_ended(passed.send));
  EXPECT_FALSE(last_->take_ended(receive_of_last));
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(middle_->broken(now), std::nullopt);
  EXPECT_EQ(middle_->broken(now + std::chrono::seconds(3)), 0);  // not 2, who still takes all
  EXPECT_EQ(last_->broken(now), std::nullopt);
  EXPECT_EQ(last_->broken(now + std::chrono::seconds(3)), std::nullopt);
}

TEST_F(PassedMessages, WhatIsNotTakenHoldsItsSenderUp) {
  auto ends_of_last = tcp_pair();
  connect(tcp_pair(), {std::move(ends_of_last[0]), Socket()});
  const Bytes sent(64 << 20, std::byte{1});  // much more than kernels take
  Bytes here(sent.size());
  const Wire::Passed passed = pass_on(here);
  const Wire::Posted send_of_root = send(sent);
  for (int still = 0; still < 1000; ++still) {
    root_->progress();
    middle_->progress();
    if (root_->have_moved() || middle_->have_moved()) still = 0;
  }
  EXPECT_FALSE(root_->take_ended(send_of_root));
  EXPECT_FALSE(middle_->take_ended(passed.receive));
  EXPECT_LT(std::count(here.begin(), here.end(), std::byte{1}), std::ssize(here) / 2);
  // Once the last takes it, all goes on.
  std::vector<Streams::Connection> of_last;
  of_last.push_back({1, kKind, std::move(ends_of_last[1])});
  last_ = std::make_unique<Streams>(std::move(of_last));
  Bytes come(sent.size());
  EXPECT_TRUE(ends(*last_, receive(come)));
  EXPECT_TRUE(ends(*middle_, passed.receive));
  EXPECT_TRUE(ends(*middle_, passed.send));
  EXPECT_TRUE(ends(*root_, send_of_root));
  EXPECT_EQ(come, sent);
}

TEST_F(PassedMessages, NothingMovesAfterAStop) {
  auto ends_of_root = tcp_pair();
  const Socket root = std::move(ends_of_root[0]);
  connect({Socket(), std::move(ends_of_root[1])}, tcp_pair());
  const Bytes sent = bytes(100'000, 1);
  Bytes here(sent.size());
  const Wire::Passed passed = pass_on(here);
  const std::uint64_t header = header_of(sent.size());
  ASSERT_EQ(::send(root.get(), &header, sizeof header, 0), 8);
  ASSERT_EQ(::send(root.get(), sent.data(), 1000, 0), 1000);
  ASSERT_TRUE(soon([&] {
    middle_->progress();
    return unread(to_last_) == 8 + 1000;
  }));
  middle_->stop();
  ASSERT_EQ(::send(root.get(), sent.data() + 1000, 1000, 0), 1000);
  ASSERT_TRUE(soon([&] { return unread(to_middle_) == 1000; }));
  for (int i = 0; i < 100; ++i) middle_->progress();
  EXPECT_EQ(unread(to_middle_), 1000);
  EXPECT_EQ(unread(to_last_), 8 + 1000);
  EXPECT_FALSE(middle_->take_ended(passed.receive));
  Bytes beginning(sent.size());
  std::copy_n(sent.begin(), 1000, beginning.begin());
  EXPECT_EQ(here, beginning);
}

}  // namespace
}  // namespace tutti::mpi
