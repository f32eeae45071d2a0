// How much memory a host's leader takes for the others.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <numeric>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/shards.hpp"
#include "comm/simulation/heap.hpp"
#include "comm/simulation/wire.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::Process;
using simulation::SimulatedWire;

/** Bytes of the heap for each of so many hosts, once all of them are connected and have met. */
std::int64_t heap_of_each(int hosts) {
  const std::int64_t before = simulation::heap_in_use();
  Cluster cluster(hosts, 1, {}, 1);
  std::vector<int> members(static_cast<std::size_t>(hosts));
  std::iota(members.begin(), members.end(), 0);
  std::int64_t taken = 0;
  int met = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, std::chrono::seconds(5));
    try {
      wire.connect();
      const HostGroup group(wire, members);
      GroupAgreement agreement(group);
      agreement.agree(1);
      if (++met == hosts) taken = simulation::heap_in_use() - before;
      agreement.agree(2);  // nobody leaves before
    } catch (const std::exception& error) {
      ADD_FAILURE() << "host " << process.rank() << " of " << hosts << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  EXPECT_EQ(met, hosts);
  return taken / hosts;
}

TEST(HostMemory, GrowsNoFasterThanTheHostsAndSoIsLessThan64MiBWith4096) {
  const std::int64_t with_64 = heap_of_each(64);
  const std::int64_t with_256 = heap_of_each(256);
  if (with_64 == 0) GTEST_SKIP() << "an allocator of the sanitizer's, which does not say";
  EXPECT_LT(with_256, 4 * with_64);  // no faster than their number, and if as fast:
  EXPECT_LT(with_256 * (4096 / 256) + kMostScratch, std::int64_t{64} << 20) << with_256;
}

/** Whether so many hosts bring `bytes` each to an agreement. */
bool carries(int hosts, std::int64_t bytes) {
  Cluster cluster(hosts, 1, {}, 1);
  std::vector<int> members(static_cast<std::size_t>(hosts));
  std::iota(members.begin(), members.end(), 0);
  SimulatedWire wire(cluster.process(0), 1, std::chrono::seconds(5));
  return GroupAgreement(HostGroup(wire, members)).carries(bytes, bytes);
}

TEST(HostMemory, TakesAtMostOneMiBForWhatAllHostsBring) {
  EXPECT_TRUE(carries(1024, 1024));
  EXPECT_FALSE(carries(1025, 1024));
  EXPECT_TRUE(carries(4096, 256));
  EXPECT_FALSE(carries(4096, 257));
}

}  // namespace
}  // namespace tutti::test
