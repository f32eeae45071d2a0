// On simulated hosts the news of a mismatch come late: who knows of it has left by then.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
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

/** What rank 0 knows of the mismatch that rank 1 has found. */
enum class Knows { nothing, noted, heard };

/** Of two hosts with two ranks each. Those of host 1 wait for rank 0 until rank 1 tells what it has
 * shown rank 0 long before: what they throw. `is_noted`: a thread of rank 1 has noted it as well.
 * `stops`: rank 1 does not come to tell before they give up on it.
 */
std::string story(Knows knows, bool is_noted = false, bool stops = false) {
  Cluster cluster(2, 2, NetworkModel{}, 1);
  std::string heard;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    if (process.rank() == 0) {
      if (knows != Knows::nothing) {
        wire.watch().note_mismatch("they differ",
                                   knows == Knows::heard ? Finder::neighbour : Finder::self);
      }
    } else if (process.rank() == 1) {
      process.compute(milliseconds(stops ? 20'000 : 1000));
      if (is_noted) wire.watch().note_mismatch("they differ", Finder::self);
      wire.watch().announce_mismatch("they differ");
    } else {
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

TEST(SimulatedLateNews, WhoIsStoppedBeforeItTellsOfAMismatchHasItsLeaderTell) {
  EXPECT_EQ(story(Knows::heard, false, true), "they differ; they differ");
  EXPECT_NE(story(Knows::noted, false, true), "they differ; they differ");
}

/** On two hosts with eight ranks each, of which rank 12 is lost: rank 7 finds it, and its
 * neighbours hear of it through shared memory. How many messages tell the others, and how many
 * ranks hear. */
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
      const bool finds = process.rank() == kFinder;
      wire.watch().announce_lost(kLost, "has ended", finds ? Finder::self : Finder::neighbour);
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

TEST(SimulatedNews, OfAFailureAreToldByItsFinderAndTwoOthers) {
  for (const bool finder_stops : {false, true}) {
    const auto [messages, heard] = told(finder_stops);
    EXPECT_EQ(heard, 7);
    // Those two tell all but who is lost, and the leader of the other host its own.
    EXPECT_LE(messages, (finder_stops ? 0 : 15) + 2 * 14 + 7);
  }
}

/** A rank each on so many hosts, of which the last one is lost, and rank 0 finds it: `act` of all
 * others. */
struct Lost {
  explicit Lost(int hosts, int ranks = 1) : cluster(hosts, ranks, NetworkModel{}, 1) {}
  void happens(const std::function<void(SimulatedWire&, Process&)>& act) {
    cluster.start([&](Process& process) {
      SimulatedWire wire(process, 1, milliseconds(5000));
      wire.connect();
      act(wire, process);
      process.compute(std::chrono::hours(1));  // its connections do not end
    });
    cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  }
  /** Waits for `source`, which sends nothing, and notes when that ends. */
  void wait_for(int source, SimulatedWire& wire) {
    std::array<std::byte, 8> data{};
    Batch batch(wire, Wire::Traffic::collective);
    batch.recv(data.data(), std::ssize(data), source);
    const auto begin = cluster.scheduler().now();
    try {
      batch.wait();
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{cluster.size() - 1});
      ++heard;
      longest = std::max(longest, cluster.scheduler().now() - begin);
    }
  }
  /** By the finder. */
  void tell(SimulatedWire& wire) const {
    const int lost = cluster.size() - 1;
    wire.watch().announce_lost(std::span(&lost, 1), "has ended");
  }

  Cluster cluster;
  int heard = 0;
  Scheduler::Duration longest{};
};

TEST(SimulatedNews, AreEverywhereSoonThoughEachHostTellsFew) {
  constexpr int kHosts = 300;
  Lost lost(kHosts);
  lost.happens([&](SimulatedWire& wire, Process& process) {
    if (process.rank() == 0) return lost.tell(wire);
    // Some of those who would pass it on compute.
    if (process.rank() % 3 == 0 || process.rank() == kHosts - 1) return;
    lost.wait_for(0, wire);
  });
  EXPECT_EQ(lost.heard, 200 - 1);
  EXPECT_LT(lost.longest, milliseconds(20));
  for (int rank = 0; rank < kHosts; ++rank) {
    EXPECT_LE(lost.cluster.process(rank).control_messages(), 2 * 9) << rank;
  }
}

TEST(SimulatedNews, ArePassedOnByWhoLeavesWithoutHavingLooked) {
  constexpr int kFar = 10;  // of 20 hosts the first has no connection to it
  Lost lost(20);
  lost.happens([&](SimulatedWire& wire, Process& process) {
    if (process.rank() == 0) return lost.tell(wire);
    if (process.rank() == kFar) return lost.wait_for(0, wire);
    process.compute(milliseconds(10));
    wire.leave();
  });
  EXPECT_EQ(lost.heard, 1);
  EXPECT_LT(lost.longest, milliseconds(20));
}

TEST(SimulatedNews, AreNotOverlookedByWhoFindsALossItself) {
  constexpr int kFar = 10;
  Lost lost(20);
  lost.happens([&](SimulatedWire& wire, Process& process) {
    if (process.rank() == 0) return lost.tell(wire);
    if (process.rank() == kFar) return lost.wait_for(0, wire);
    const std::vector<int> next = connected_hosts(0, 20);
    if (process.rank() == 19 || !std::binary_search(next.begin(), next.end(), process.rank()))
      return;
    process.compute(milliseconds(10));
    constexpr std::array kOther{15};
    wire.watch().announce_lost(kOther, "does not answer");
    EXPECT_THROW(wire.watch().poll({}), PeerLost);
  });
  EXPECT_EQ(lost.heard, 1);
}

TEST(SimulatedNews, ReachWhoWaitsThoughItsLeaderComputes) {
  constexpr int kLeader = 10;  // of host 5, to which host 0 has no connection, like that of
  constexpr int kFar = 21;     // on host 10
  Lost lost(20, 2);
  lost.happens([&](SimulatedWire& wire, Process& process) {
    if (process.rank() == 0) {
      process.compute(milliseconds(400));
      return lost.tell(wire);
    }
    if (process.rank() == kFar) return lost.wait_for(kLeader, wire);
    if (process.host() != 10 && process.rank() != 39) lost.wait_for(0, wire);
  });
  EXPECT_EQ(lost.heard, 40 - 3);
  EXPECT_LT(lost.longest, milliseconds(450));
}

}  // namespace
}  // namespace tutti::test
