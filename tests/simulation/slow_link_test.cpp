// On simulated hosts a link keeps back what others answer, and what they tell: who hears nobody
// waits for longer before it names anybody, but not for ever.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/batch.hpp"
#include "comm/simulation/wire.hpp"
#include "tutti/error.hpp"

namespace tutti::test::slow_link_test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::SimulatedWire;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{1000};
/** From a deadline until who has stopped is known. */
constexpr milliseconds kToFindOut{600};
/** At most, over a slow link. */
constexpr milliseconds kToTell{250};
constexpr milliseconds kForEver{60'000};
constexpr int kHosts = 6;

struct Ending {
  std::vector<int> lost;
  milliseconds after{};
};

/** Rank 0 waits for rank 1 in a collective, the others for rank 0, if they come: how each ends. */
std::vector<Ending> endings(Cluster& cluster, const std::function<bool(Process& process)>& comes) {
  std::vector<Ending> all(static_cast<std::size_t>(cluster.size()));
  const auto begin = cluster.scheduler().now();
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kDeadline);
    wire.connect();
    if (comes(process)) {
      std::array<std::byte, 8> data{};
      Batch batch(wire, Wire::Traffic::collective);
      batch.recv(data.data(), std::ssize(data), process.rank() == 0 ? 1 : 0);
      Ending& ending = all[static_cast<std::size_t>(process.rank())];
      try {
        batch.wait();
      } catch (const PeerLost& error) {
        ending.lost = error.ranks();
      }
      ending.after = std::chrono::duration_cast<milliseconds>(cluster.scheduler().now() - begin);
    }
    wire.leave();
  });
  cluster.scheduler().run(begin + 2 * kForEver);
  return all;
}

/** What comes to rank 0 comes so much later, from before its first question on. */
void keep_back(Cluster& cluster, milliseconds time) {
  constexpr double kSlow = 1e5;
  const double seconds = std::chrono::duration<double>(time).count();
  const double bytes = seconds * cluster.network().model().bytes_per_second / kSlow;
  cluster.network().slow_down(0, kSlow);
  cluster.scheduler().at(cluster.scheduler().now() + kDeadline / 10, [&cluster, bytes] {
    cluster.network().send(1, 0, static_cast<std::int64_t>(bytes), 0, [] {});
  });
}

bool everybody_comes(Process& /*process*/) { return true; }

TEST(SimulatedSlowLink, WhoHearsNobodyIsToldWhomAllOthersName) {
  Cluster cluster(kHosts, 1, {}, 1);
  keep_back(cluster, 2 * kDeadline);
  for (const Ending& ending : endings(cluster, everybody_comes)) {
    EXPECT_EQ(ending.lost, std::vector{0});
  }
}

TEST(SimulatedSlowLink, WhoHearsNobodyWaitsForOneMoreDeadline) {
  Cluster cluster(kHosts, 1, {}, 1);
  keep_back(cluster, kForEver);
  const Ending ending = endings(cluster, everybody_comes).front();
  EXPECT_EQ(ending.lost, std::vector{1});
  EXPECT_GT(ending.after, 2 * kDeadline);
  EXPECT_LT(ending.after, 2 * kDeadline + kToFindOut + kToTell);
}

/** Rank 0 waits for a rank that computes, on so many hosts, while `others` do something else. */
Ending ending_of_first(int hosts, const std::function<bool(Process& process)>& others) {
  Cluster cluster(hosts, 1, {}, 1);
  return endings(cluster,
                 [&](Process& process) {
                   if (process.rank() == 0) return true;
                   if (process.rank() > 1) return others(process);
                   process.compute(kForEver);
                   return false;
                 })
      .front();
}

TEST(SimulatedSlowLink, WhoHearsOthersDoesNotWaitForLonger) {
  const Ending ending = ending_of_first(kHosts, everybody_comes);
  EXPECT_EQ(ending.lost, std::vector{1});
  EXPECT_LT(ending.after, kDeadline + kToFindOut);
}

TEST(SimulatedSlowLink, WhoHearsNobodyWaitsUntilOneIsHeard) {
  constexpr milliseconds kLater{kDeadline + kDeadline * 3 / 4};
  const Ending ending = ending_of_first(kHosts, [&](Process& process) {
    process.compute(process.rank() == 2 ? kLater : kForEver);
    return process.rank() == 2;
  });
  EXPECT_EQ(ending.lost, std::vector{1});
  EXPECT_GE(ending.after, kLater);
  EXPECT_LT(ending.after, kLater + milliseconds(50));
}

TEST(SimulatedSlowLink, NobodyWaitsForLongerWhereTheOthersHaveLeftOrAreFew) {
  const auto leave = [](Process& /*process*/) { return false; };
  const auto compute = [](Process& process) {
    process.compute(kForEver);
    return false;
  };
  for (const Ending& ending : {ending_of_first(kHosts, leave), ending_of_first(4, compute)}) {
    EXPECT_EQ(ending.lost, std::vector{1});
    EXPECT_LT(ending.after, kDeadline + kToFindOut);
  }
}

}  // namespace
}  // namespace tutti::test::slow_link_test
