// Simulated connections of leaders: their order, and senders that wait for room.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/batch.hpp"
#include "comm/simulation/wire.hpp"

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

}  // namespace
}  // namespace tutti::test
