// On simulated hosts the news of a mismatch come late: who knows of it has left by then.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "comm/batch.hpp"
#include "comm/failure.hpp"
#include "comm/simulation/wire.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::SimulatedWire;
using std::chrono::milliseconds;

/** What rank 0 knows of the mismatch that rank 1 has found: what all find, or that it is to stand
 * in for rank 1. */
enum class Knows { nothing, noted, heard };

/** Of two hosts with two ranks each. Those of host 1 wait for rank 0 until rank 1 tells what it has
 * shown rank 0 long before: what they throw. `is_noted`: a thread of rank 1 has noted it as well.
 * `stops`: rank 1 does not come to tell before they give up on it. `leader_leaves`: rank 2 has
 * nothing to wait for.
 */
std::string story(Knows knows, bool is_noted = false, bool stops = false,
                  bool leader_leaves = false) {
  Cluster cluster(2, 2, NetworkModel{}, 1);
  std::string heard;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    if (process.rank() == 0) {
      if (knows == Knows::noted) wire.watch().note_mismatch("they differ");
      if (knows == Knows::heard) wire.watch().announce_mismatch("they differ", Herald::stand_in);
    } else if (process.rank() == 1) {
      process.compute(milliseconds(stops ? 20'000 : 1000));
      if (is_noted) wire.watch().note_mismatch("they differ");
      wire.watch().announce_mismatch("they differ");
    } else if (process.rank() != 2 || !leader_leaves) {
      std::array<std::byte, 8> data{};
      Batch batch(wire, Wire::Traffic::collective);
      batch.recv(data.data(), std::ssize(data), 0);
      try {
        batch.wait();
      } catch (const std::exception& error) {
        heard += std::string(heard.empty() ? "" : "; ") + error.what();
      }
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  return heard;
}

TEST(SimulatedLateNews, WhoKnowsOfAMismatchDoesNotTellThatItLeaves) {
  EXPECT_EQ(story(Knows::noted), "they differ; they differ");
  EXPECT_EQ(story(Knows::noted, true), "they differ; they differ");
  EXPECT_NE(story(Knows::nothing).find("lost rank 0"), std::string::npos);
}

TEST(SimulatedLateNews, WhoIsStoppedBeforeItTellsOfAMismatchHasANeighbourTell) {
  EXPECT_EQ(story(Knows::heard, false, true), "they differ; they differ");
  EXPECT_EQ(story(Knows::heard, false, true, true), "they differ");
  EXPECT_NE(story(Knows::noted, false, true), "they differ; they differ");
}

/** On two hosts with eight ranks each, of which rank 12 is lost: rank 7 finds it, and its
 * neighbours hear of it through shared memory, of whom ranks 2 and 5 are first. How many messages
 * tell the others, and how many ranks hear. */
std::pair<std::int64_t, int> told(bool finder_stops) {
  constexpr std::array kLost{12};
  constexpr int kFinder = 7;
  Cluster cluster(2, 8, NetworkModel{}, 1);
  int heard = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    process.compute(milliseconds(10));
    if (process.rank() == kLost[0]) return;
    if (process.rank() == kFinder && finder_stops) return;
    if (process.host() == 0) {
      const int rank = process.rank();
      const Herald herald = rank == kFinder          ? Herald::finder
                            : rank == 2 || rank == 5 ? Herald::stand_in
                                                     : Herald::nobody;
      wire.watch().announce_lost(kLost, "has ended", herald);
      process.compute(milliseconds(20));
      return;
    }
    std::array<std::byte, 8> data{};
    Batch batch(wire, Wire::Traffic::collective);
    batch.recv(data.data(), std::ssize(data), 0);
    try {
      batch.wait();
    } catch (const PeerLost&) {
      ++heard;
    }
  });
  cluster.scheduler().run(cluster.scheduler().now() + milliseconds(100));
  return {cluster.traffic().control_messages, heard};
}

TEST(SimulatedNews, OfAFailureAreToldByItsFinderAndThoseWhoStandInForIt) {
  for (const bool finder_stops : {false, true}) {
    const auto [messages, heard] = told(finder_stops);
    EXPECT_EQ(heard, 7);
    // Those two tell all but who is lost, and the leader of the other host its own.
    EXPECT_LE(messages, (finder_stops ? 0 : 15) + 2 * 14 + 7);
  }
}

}  // namespace
}  // namespace tutti::test
