// Messages over TCP connections: in their order, where they belong, and nothing beyond a stop.
#include "comm/mpi/sockets/streams.hpp"

#include <gtest/gtest.h>
#include <linux/sockios.h>
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
#include <thread>
#include <utility>
#include <vector>

#include "streams_fixture.hpp"
#include "tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using test::bytes;
using test::Bytes;
using test::kKind;
using test::StreamsTest;

TEST_F(StreamsTest, CarryWhatTheyHaveConnectionsFor) {
  EXPECT_TRUE(left_->reaches(1, kKind));
  EXPECT_FALSE(left_->reaches(0, kKind));
  EXPECT_FALSE(left_->reaches(2, kKind));
  EXPECT_FALSE(left_->reaches(1, Wire::Traffic::ahead));
  EXPECT_FALSE(left_->reaches(1, Wire::Traffic::point_to_point));
}

/** What is held leaves together, whatever moves the connection. */
TEST_F(StreamsTest, MessagesThatAreHeldLeaveTogether) {
  const Bytes first = bytes(64, 1);
  const Bytes second = bytes(5000, 2);
  std::vector<Bytes> come{Bytes(first.size()), Bytes(second.size())};
  std::vector<Wire::Posted> wanted{receive(come[0]), receive(come[1])};
  left_->hold(true);
  send(first);
  send(second);
  right_->progress();
  EXPECT_FALSE(right_->take_ended(wanted[0]));
  left_->hold(false);
  right_->progress();
  EXPECT_TRUE(right_->take_ended(wanted[0]));
  EXPECT_TRUE(right_->take_ended(wanted[1]));
  EXPECT_EQ(come[0], first);
  EXPECT_EQ(come[1], second);

  left_->hold(true);
  send(first);
  left_->progress();
  wanted[0] = receive(come[0]);
  right_->progress();
  EXPECT_FALSE(right_->take_ended(wanted[0]));
  left_->hold(false);
  right_->progress();
  EXPECT_TRUE(right_->take_ended(wanted[0]));
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

TEST_F(StreamsTest, NotesAreTakenAndWhatFollowsThemReceived) {
  const Bytes note = bytes(300, 1);
  const Bytes data = bytes(61'440, 2);
  const Bytes next = bytes(20, 3);
  left_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note);
  left_->send(data.data(), std::ssize(data), 1, Wire::Traffic::noted);
  left_->send(next.data(), std::ssize(next), 1, Wire::Traffic::note);
  Bytes room(Wire::kShort);
  const auto take = [&](int source) {
    return right_->take(room.data(), Wire::kShort, Wire::Traffic::note, source);
  };
  EXPECT_EQ(take(0), 0);
  EXPECT_TRUE(std::equal(note.begin(), note.end(), room.begin()));
  EXPECT_EQ(take(0), std::nullopt);  // what is noted comes first
  Bytes come(data.size());
  const auto posted = right_->receive(come.data(), std::ssize(come), 0, Wire::Traffic::noted);
  right_->progress();
  EXPECT_TRUE(right_->take_ended(posted));
  EXPECT_EQ(come, data);
  EXPECT_EQ(take(Wire::kAnybody), 0);
  EXPECT_TRUE(std::equal(next.begin(), next.end(), room.begin()));
  EXPECT_EQ(take(Wire::kAnybody), std::nullopt);
}

TEST_F(StreamsTest, AMessageIsNotTakenForOneOfAnotherKind) {
  const Bytes note = bytes(30, 1);
  left_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note);
  Bytes come(30);
  const auto posted = receive(come);
  move();
  EXPECT_FALSE(right_->take_ended(posted));
  EXPECT_FALSE(right_->are_in_trouble());
  Bytes room(Wire::kShort);
  EXPECT_EQ(right_->take(room.data(), Wire::kShort, Wire::Traffic::note, 0), 0);
  const Bytes sent = bytes(30, 2);
  send(sent);
  move();
  EXPECT_TRUE(right_->take_ended(posted));
  EXPECT_EQ(come, sent);
}

/** What one end has of three connections, the others' ends of which a test holds. */
struct ThreeEnds {
  ThreeEnds() {
    std::vector<Streams::Connection> connections;
    for (int rank = 1; rank <= 3; ++rank) {
      std::array<int, 2> ends{};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
      connections.push_back({rank, kKind, Socket(ends[0])});
      others.emplace_back(ends[1]);
    }
    own = std::make_unique<Streams>(std::move(connections));
  }
  void break_off(int rank) { others[static_cast<std::size_t>(rank - 1)] = {}; }

  std::vector<Socket> others;
  std::unique_ptr<Streams> own;
};

TEST_F(StreamsTest, WhoseConnectionHasEndedIsToldAfterTwoSecondsOfWaiting) {
  using namespace std::chrono_literals;
  const std::chrono::steady_clock::time_point start{};
  Bytes room(Wire::kShort);
  const auto waits = [&](const char* what, const auto& wait) {
    SCOPED_TRACE(what);
    ThreeEnds ends;
    wait(*ends.own);
    EXPECT_FALSE(ends.own->are_in_trouble());
    ends.break_off(2);
    wait(*ends.own);
    EXPECT_TRUE(ends.own->are_in_trouble());
    EXPECT_EQ(ends.own->broken(start), std::nullopt);
    EXPECT_EQ(ends.own->broken(start + 1900ms), std::nullopt);
    EXPECT_EQ(ends.own->broken(start + 2100ms), 2);
  };
  waits("receive", [&](Streams& own) {
    for (int rank = 1; rank <= 3; ++rank) own.receive(room.data(), 10, rank, kKind);
    own.progress();
  });
  waits("send", [&](Streams& own) {
    own.send(room.data(), 10, 2, kKind);
    own.send(room.data(), 10, 3, kKind);
    own.progress();
  });
  waits("note", [&](Streams& own) {
    EXPECT_EQ(own.take(room.data(), Wire::kShort, Wire::Traffic::note, 2), std::nullopt);
    EXPECT_EQ(own.take(room.data(), Wire::kShort, Wire::Traffic::note, Wire::kAnybody),
              std::nullopt);
  });
}

TEST_F(StreamsTest, AConnectionForWhichNobodyWaitsMayEnd) {
  using namespace std::chrono_literals;
  ThreeEnds ends;
  Bytes room(Wire::kShort);
  const auto take = [&](int source) {
    return ends.own->take(room.data(), Wire::kShort, Wire::Traffic::note, source);
  };
  ends.own->receive(room.data(), 10, 1, kKind);
  EXPECT_EQ(take(3), std::nullopt);
  {
    const auto theirs = test::streams_with(0, std::move(ends.others[2]));
    theirs->send(room.data(), 10, 0, Wire::Traffic::note);
  }
  EXPECT_EQ(take(Wire::kAnybody), 3);  // so that nobody waits for it any more
  EXPECT_EQ(take(Wire::kAnybody), std::nullopt);
  EXPECT_TRUE(ends.own->are_in_trouble());
  const std::chrono::steady_clock::time_point start{};
  EXPECT_EQ(ends.own->broken(start), std::nullopt);
  EXPECT_EQ(ends.own->broken(start + 1min), std::nullopt);
}

/** Sends `data` to rank 1 until that has to wait: how often it had not, and what waits. */
struct HeldUp {
  HeldUp(Streams& root, const Bytes& data) {
    do {
      waits = root.send(data.data(), std::ssize(data), 1, Wire::Traffic::noted);
      for (int i = 0; i < 10; ++i) root.progress();
    } while (root.take_ended(waits) && ++calls < 10'000);
  }
  int calls = 0;
  Wire::Posted waits = Wire::kEnded;
};

TEST_F(StreamsTest, ARootThatNobodyFollowsIsHeldUp) {
  auto ends = tcp_pair();
  const int number = ends[0].get();
  left_ = test::streams_with(1, std::move(ends[0]));
  const Bytes sent = bytes(60 << 10, 1);
  const HeldUp root(*left_, sent);
  ASSERT_LT(root.calls, 10'000);
  int left = 0;
  ASSERT_EQ(::ioctl(number, SIOCOUTQ, &left), 0);
  EXPECT_LE(left, 512 << 10);
  // Once the other end takes what has come, all goes on.
  right_ = test::streams_with(0, std::move(ends[1]));
  for (int call = 0; call <= root.calls; ++call) {
    Bytes come(sent.size());
    const auto wanted = right_->receive(come.data(), std::ssize(come), 0, Wire::Traffic::noted);
    while (!right_->take_ended(wanted)) {
      left_->progress();
      right_->progress();
    }
    ASSERT_EQ(come, sent) << call;
  }
  EXPECT_TRUE(left_->take_ended(root.waits));
}

TEST_F(StreamsTest, ARootThatIsHeldUpFindsThatTheOtherEndHasGone) {
  using namespace std::chrono_literals;
  auto ends = tcp_pair();
  left_ = test::streams_with(1, std::move(ends[0]));
  const Bytes sent = bytes(60 << 10, 1);
  const HeldUp root(*left_, sent);
  EXPECT_FALSE(left_->are_in_trouble());
  ends[1] = {};  // with what it has not read, so that this end is told at once
  left_->progress();
  EXPECT_TRUE(left_->are_in_trouble());
  EXPECT_FALSE(left_->take_ended(root.waits));
  const std::chrono::steady_clock::time_point start{};
  EXPECT_EQ(left_->broken(start), std::nullopt);
  EXPECT_EQ(left_->broken(start + 2100ms), 1);
}

TEST_F(StreamsTest, NotesAreTakenByAnyThreadWhileAnotherReceives) {
  constexpr int kCalls = 2000;
  int notes = 0;
  std::thread looks([&] {
    Bytes room(Wire::kShort);
    while (notes < kCalls) {
      const auto from =
          right_->take(room.data(), Wire::kShort, Wire::Traffic::note, Wire::kAnybody);
      notes += from ? 1 : 0;
      if (!from) std::this_thread::yield();
    }
  });
  const Bytes note = bytes(100, 1);
  for (int call = 0; call < kCalls; ++call) {
    const Bytes sent = bytes(static_cast<std::size_t>(call % 7 * 1000 + 1), 2);
    Bytes come(sent.size());
    left_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note);
    const auto leaves = left_->send(sent.data(), std::ssize(sent), 1, kKind);
    const auto posted = receive(come);
    while (!right_->take_ended(posted)) {
      left_->progress();
      right_->progress();
      std::this_thread::yield();
    }
    ASSERT_TRUE(left_->take_ended(leaves));
    ASSERT_EQ(come, sent) << call;
  }
  looks.join();
  EXPECT_EQ(notes, kCalls);
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
