// Hosts of several ranks, of which each adds up a share of a long sum with those of its number.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::Process;
using simulation::SimulatedWire;

float value_of(int host, std::int64_t i) { return static_cast<float>((host + 2) * (i % 1013)); }

/** Adds up `count` floats on `hosts` of so many ranks; each checks what is its own, and that it
 * has written nothing else: each element is summed in one lane. */
void add_up(int hosts, int lanes, std::int64_t count) {
  Cluster cluster(hosts, lanes, {}, 1);
  std::vector<int> sums(static_cast<std::size_t>(count));  // on how many ranks of host 0
  int ended = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, std::chrono::milliseconds(5000));
    const Layout& layout = cluster.layout();
    const int lane = layout.local_rank_of(process.rank());
    try {
      wire.connect();
      const HostGroup group(wire, layout.lane_of(process.rank()));
      const AllReduce all_reduce(group, false, {lane, lanes});
      std::vector<float> data(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) {
        data[static_cast<std::size_t>(i)] = value_of(group.position(), i);
      }
      std::vector<char> is_own(data.size());
      const auto after = [&](std::int64_t begin, std::int64_t length) {
        const std::int64_t most = all_reduce.share_of_lane(length, count, DType::f32);
        const std::int64_t from = begin + std::min(length, lane * most);
        const std::int64_t to = std::min(begin + length, from + most);
        std::fill(is_own.begin() + from, is_own.begin() + to, 1);
      };
      all_reduce.run(data.data(), count, DType::f32, combine_of(Reduce::sum, hosts),
                     {.after = after});
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        float sum = 0;
        for (int host = 0; host < hosts; ++host) sum += value_of(host, i);
        if (is_own[at] != 0) {
          ASSERT_EQ(data[at], sum) << i << " on rank " << process.rank();
          if (group.position() == 0) ++sums[at];
        } else {
          ASSERT_EQ(data[at], value_of(group.position(), i)) << i << " on rank " << process.rank();
        }
      }
      ++ended;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << process.rank() << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  EXPECT_EQ(ended, hosts * lanes);
  EXPECT_EQ(std::count(sums.begin(), sums.end(), 1), count) << "each of one lane";
}

TEST(SimulatedLanes, EachAddsUpItsShare) {
  for (const int hosts : {2, 3, 8}) {
    for (const int lanes : {2, 3}) {
      const std::int64_t segment =
          (std::int64_t{128} << 10U) / 4 * lanes * (hosts == 2 ? 4 : hosts);
      for (const std::int64_t count :
           {segment / 4 + 1, segment, 2 * segment + std::int64_t{16} * lanes + 5}) {
        SCOPED_TRACE(std::to_string(hosts) + "x" + std::to_string(lanes) + ", " +
                     std::to_string(count));
        add_up(hosts, lanes, count);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test
