// Simulated connections of leaders: their order, and senders that wait for room.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/batch.hpp"
#include "comm/simulation/wire.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::Scheduler;
using simulation::SimulatedWire;
using std::chrono::milliseconds;
using Traffic = Wire::Traffic;
using Bytes = std::vector<std::byte>;
using Part = std::function<void(SimulatedWire&, Process&)>;

constexpr milliseconds kLate{300};

/** Runs `sender` and `receiver` on the first two of `hosts` hosts; how long the sender took. */
Scheduler::Duration time_to_send(std::int64_t room, const Part& sender, const Part& receiver,
                                 int hosts = 2) {
  Cluster cluster(hosts, 1, NetworkModel{}, 1);
  cluster.set_room(room);
  Scheduler::Duration took{};
  int ended = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    const auto begin = cluster.scheduler().now();
    if (process.rank() < 2) (process.rank() == 0 ? sender : receiver)(wire, process);
    if (process.rank() == 0) took = cluster.scheduler().now() - begin;
    ++ended;
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  EXPECT_EQ(ended, hosts);
  return took;
}

/** A message of `bytes` bytes, to a rank that looks after it late. */
Scheduler::Duration time_to_send(std::int64_t room, std::int64_t bytes, int hosts = 2,
                                 Traffic traffic = Traffic::collective) {
  Bytes data(static_cast<std::size_t>(bytes), std::byte{7});
  Bytes come(data.size());
  const auto took = time_to_send(
      room,
      [&](SimulatedWire& wire, Process& /*process*/) {
        Batch batch(wire, traffic);
        batch.send(data.data(), bytes, 1);
        batch.wait();
      },
      [&](SimulatedWire& wire, Process& process) {
        process.compute(kLate);
        Batch batch(wire, traffic);
        batch.recv(come.data(), bytes, 0);
        batch.wait();
      },
      hosts);
  EXPECT_EQ(come, data);
  return took;
}

/** The others to which each rank of so many hosts has a connection. */
std::vector<std::vector<int>> connected(int hosts, int ranks, std::int64_t room) {
  Cluster cluster(hosts, ranks, NetworkModel{}, 1);
  cluster.set_room(room);
  std::vector<std::vector<int>> peers(static_cast<std::size_t>(cluster.size()));
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    for (int peer = 0; peer < wire.size(); ++peer) {
      if (wire.longest(peer, Traffic::collective) == Wire::kPiece) continue;
      peers[static_cast<std::size_t>(wire.rank())].push_back(peer);
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  return peers;
}

TEST(SimulatedConnections, RanksOfALaneHaveSomeWhereHostsAreFew) {
  using Peers = std::vector<std::vector<int>>;
  EXPECT_EQ(connected(3, 2, 1 << 18), (Peers{{2, 4}, {3, 5}, {0, 4}, {1, 5}, {0, 2}, {1, 3}}));
  EXPECT_EQ(connected(3, 2, 0), Peers(6));
  const Peers many = connected(Wire::kMostWithoutAhead + 1, 2, 1 << 18);
  for (std::size_t rank = 0; rank < many.size(); ++rank) {
    EXPECT_EQ(many[rank].empty(), rank % 2 != 0) << rank;
  }
}

TEST(SimulatedConnections, WhoSendsMoreThanThereIsRoomForWaits) {
  constexpr std::int64_t kRoom = 200'000;
  EXPECT_LT(time_to_send(0, 2 * kRoom), kLate);  // has room for all
  EXPECT_LT(time_to_send(kRoom, kRoom), kLate);
  EXPECT_GE(time_to_send(kRoom, 2 * kRoom), kLate);
  EXPECT_LT(time_to_send(1, 1000), kLate);  // one message has room in any case
}

TEST(SimulatedConnections, AreOnlyThoseThatHostsHave) {
  constexpr std::int64_t kRoom = 200'000;
  EXPECT_GE(time_to_send(kRoom, 2 * kRoom, 2, Traffic::ahead), kLate);
  EXPECT_LT(time_to_send(kRoom, 2 * kRoom, 3, Traffic::ahead), kLate);
  EXPECT_LT(time_to_send(kRoom, 2 * kRoom, 8, Traffic::ahead), kLate);
  EXPECT_GE(time_to_send(kRoom, 2 * kRoom, 9, Traffic::ahead), kLate);
  EXPECT_GE(time_to_send(kRoom, 2 * kRoom, 8), kLate);
}

/** Whether so many hosts say that a wire of so many Gbit/s is fast. */
bool is_fast(int hosts, double gbps, std::int64_t room) {
  Cluster cluster(hosts, 2, NetworkModel{.bytes_per_second = gbps * 1e9 / 8}, 1);
  cluster.set_room(room);
  return SimulatedWire(cluster.process(1), 1, milliseconds(5000)).is_fast();
}

TEST(SimulatedConnections, AreFastWhereTheirLinksAre) {
  constexpr std::int64_t kRoom = 200'000;
  EXPECT_FALSE(is_fast(3, 1, kRoom));
  EXPECT_FALSE(is_fast(3, 10, kRoom));
  EXPECT_TRUE(is_fast(3, 25, kRoom));
  EXPECT_TRUE(is_fast(8, 25, kRoom));
  EXPECT_FALSE(is_fast(2, 25, kRoom));
  EXPECT_FALSE(is_fast(9, 25, kRoom));
  EXPECT_FALSE(is_fast(3, 25, 0)) << "there are no connections";
}

TEST(SimulatedConnections, MessagesAreReceivedInTheirOrderWhateverTheirKind) {
  std::array<std::byte, 8> note{std::byte{1}};
  std::array<std::byte, 8> data{std::byte{2}};
  std::array<std::byte, 8> come{};
  time_to_send(
      1 << 16,
      [&](SimulatedWire& wire, Process& /*process*/) {
        Batch first(wire, Traffic::note);
        first.send(note.data(), std::ssize(note), 1);
        Batch second(wire, Traffic::collective);
        second.send(data.data(), std::ssize(data), 1);
        first.wait();
        second.wait();
      },
      [&](SimulatedWire& wire, Process& process) {
        Batch batch(wire, Traffic::collective);
        batch.recv(come.data(), std::ssize(come), 0);
        process.compute(kLate);
        EXPECT_FALSE(batch.progress());  // the note is in the way
        std::array<std::byte, 8> taken{};
        EXPECT_EQ(wire.take(taken.data(), std::ssize(taken), Traffic::note, 0), 0);
        EXPECT_EQ(taken, note);
        batch.wait();
      });
  EXPECT_EQ(come, data);
}

TEST(SimulatedConnections, MessagesOfCollectivesAreNotCut) {
  const auto longest = [](std::int64_t room, Traffic traffic) {
    std::int64_t found = 0;
    time_to_send(
        room, [&](SimulatedWire& wire, Process&) { found = wire.longest(1, traffic); },
        [](SimulatedWire&, Process&) {});
    return found;
  };
  for (const Traffic whole : {Traffic::collective, Traffic::note, Traffic::noted}) {
    EXPECT_EQ(longest(1, whole), Wire::kWholePiece);
  }
  EXPECT_EQ(longest(0, Traffic::collective), Wire::kPiece);
  for (const auto other : {Traffic::ahead, Traffic::point_to_point}) {
    EXPECT_EQ(longest(1, other), Wire::kPiece);
  }
}

TEST(SimulatedConnections, TheMemoryOfWhatHasMovedIsFree) {
  constexpr std::int64_t kRoom = 100'000;
  Bytes data(3 * kRoom, std::byte{7});
  Bytes come(data.size());
  time_to_send(
      kRoom,
      [&](SimulatedWire& wire, Process& process) {
        Batch batch(wire, Traffic::collective);
        batch.send(data.data(), std::ssize(data), 1);
        process.compute(kLate / 2);
        EXPECT_TRUE(batch.progress());  // a part
        EXPECT_FALSE(batch.done());
        std::fill_n(data.begin(), kRoom, std::byte{8});             // has been read
        std::fill(data.begin() + kRoom, data.end(), std::byte{9});  // has not
        batch.wait();
      },
      [&](SimulatedWire& wire, Process& process) {
        process.compute(kLate);
        Batch batch(wire, Traffic::collective);
        batch.recv(come.data(), std::ssize(come), 0);
        batch.wait();
      });
  Bytes expected(data.size(), std::byte{9});
  std::fill_n(expected.begin(), kRoom, std::byte{7});
  EXPECT_EQ(come, expected);
}

// --- Messages that take longer than a deadline --------------------------------------------------

constexpr milliseconds kDeadline{1000};
constexpr std::int64_t kTrickling = 4 << 20;

/** How a rank has ended, and when. */
struct End {
  std::vector<int> lost;
  Scheduler::Duration at{};
};

/** The first of `hosts` hosts sends a message to each other one, for which its link takes four
 * deadlines; after two of them comes `fault`. */
std::vector<End> trickle(int hosts, const std::function<void(Cluster&)>& fault) {
  NetworkModel slow;
  const double deadlines = 4 * std::chrono::duration<double>(kDeadline).count();
  slow.bytes_per_second = static_cast<double>((hosts - 1) * kTrickling) / deadlines;
  Cluster cluster(hosts, 1, slow, 1);
  cluster.set_room(1 << 16);
  std::vector<End> ends(static_cast<std::size_t>(hosts));
  const auto begin = cluster.scheduler().now();
  cluster.scheduler().at(begin + 2 * kDeadline, [&] { fault(cluster); });
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kDeadline);
    wire.connect();
    Bytes data(kTrickling, process.rank() == 0 ? std::byte{7} : std::byte{});
    End& end = ends[static_cast<std::size_t>(process.rank())];
    try {
      Batch batch(wire, Traffic::collective);
      for (int other = 1; other < hosts && process.rank() == 0; ++other) {
        batch.send(data.data(), kTrickling, other);
      }
      if (process.rank() != 0) batch.recv(data.data(), kTrickling, 0);
      batch.wait();
      EXPECT_EQ(data, Bytes(data.size(), std::byte{7}));
    } catch (const PeerLost& loss) {
      end.lost = loss.ranks();
    }
    end.at = cluster.scheduler().now() - begin;
    wire.leave();
  });
  cluster.scheduler().run(begin + std::chrono::minutes(1));
  for (int rank = 0; rank < hosts; ++rank) cluster.continue_process(rank);
  EXPECT_TRUE(cluster.scheduler().run(begin + std::chrono::minutes(2)));  // also who was stopped
  return ends;
}

TEST(SimulatedConnections, AMessageThatTricklesForLongerThanTheDeadlineArrives) {
  for (const End& end : trickle(3, [](Cluster&) {})) {
    EXPECT_TRUE(end.lost.empty());
    EXPECT_GT(end.at, 3 * kDeadline);
  }
}

TEST(SimulatedConnections, WhoIsLostInTheMiddleOfAMessageIsNamedWithinItsDeadline) {
  const auto latest = 2 * kDeadline + kDeadline + std::chrono::seconds(1);
  for (const auto fault : {&Cluster::kill, &Cluster::crash, &Cluster::stop, &Cluster::cut_off}) {
    const std::vector<End> ends = trickle(3, [&](Cluster& cluster) { (cluster.*fault)(0); });
    for (const int survivor : {1, 2}) {
      const End& end = ends[static_cast<std::size_t>(survivor)];
      EXPECT_EQ(end.lost, std::vector{0});
      EXPECT_GE(end.at, 2 * kDeadline);
      EXPECT_LE(end.at, latest);
    }
  }
}

TEST(SimulatedConnections, WhoLeavesIsNamedWhileAMessageOfAnotherMoves) {
  NetworkModel slow;
  slow.bytes_per_second = static_cast<double>(kTrickling) / 4;
  Cluster cluster(3, 1, slow, 1);
  cluster.set_room(1 << 16);
  const auto begin = cluster.scheduler().now();
  Bytes data(kTrickling);
  std::vector<int> lost;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    try {
      Batch batch(wire, Traffic::collective);
      if (process.rank() == 0) batch.send(data.data(), kTrickling, 2);
      if (process.rank() == 2) batch.recv(data.data(), kTrickling, 0);
      std::byte nothing{};
      if (process.rank() == 2) batch.recv(&nothing, 1, 1);
      batch.wait();
    } catch (const PeerLost& loss) {
      if (process.rank() == 2) {
        lost = loss.ranks();
        EXPECT_LT(cluster.scheduler().now() - begin, std::chrono::seconds(1));
      }
    }
    wire.leave();
  });
  cluster.scheduler().run(begin + std::chrono::minutes(1));
  EXPECT_EQ(lost, std::vector{1});
}

TEST(SimulatedConnections, AReceiverThatStopsInTheMiddleOfAMessageIsNamed) {
  const std::vector<End> ends = trickle(2, [](Cluster& cluster) { cluster.stop(1); });
  EXPECT_EQ(ends[0].lost, std::vector{1});
  EXPECT_LE(ends[0].at, 2 * kDeadline + kDeadline + std::chrono::seconds(1));
}

/** How long `bytes` bytes take from the first of three hosts to the last by way of the second. */
Scheduler::Duration time_to_pass_on(std::int64_t room, std::int64_t bytes) {
  Cluster cluster(3, 1, NetworkModel{}, 1);
  cluster.set_room(room);
  Bytes data(static_cast<std::size_t>(bytes), std::byte{7});
  std::array<Bytes, 2> come{Bytes(data.size()), Bytes(data.size())};
  Scheduler::Duration took{};
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    EXPECT_TRUE(wire.passes_on(std::array{0, 1, 2}));
    const auto begin = cluster.scheduler().now();
    Batch batch(wire, Traffic::collective);
    if (process.rank() == 0) batch.send(data.data(), bytes, 1);
    if (process.rank() == 1) batch.pass_on(come[0].data(), bytes, 0, 2);
    if (process.rank() == 2) batch.recv(come[1].data(), bytes, 1);
    batch.wait();
    EXPECT_EQ(wire.bytes_sent(), process.rank() == 2 ? 0 : bytes);
    if (process.rank() == 2) took = cluster.scheduler().now() - begin;
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  EXPECT_EQ(come[0], data);
  EXPECT_EQ(come[1], data);
  return took;
}

/** One after the other they would take twice as long as one of them. */
TEST(SimulatedConnections, WhatIsPassedOnLeavesAsItComes) {
  constexpr std::int64_t kBytes = 100 * Wire::kPiece + 7;
  const NetworkModel model;
  const auto of_pieces = [&](std::int64_t pieces) {
    const double seconds = static_cast<double>(pieces * Wire::kPiece) / model.bytes_per_second;
    return std::chrono::duration_cast<Scheduler::Duration>(std::chrono::duration<double>(seconds));
  };
  const auto took = time_to_pass_on(std::int64_t{1} << 20U, kBytes);
  EXPECT_GE(took, of_pieces(101));
  EXPECT_LT(took, of_pieces(160));
}

}  // namespace
}  // namespace tutti::test
