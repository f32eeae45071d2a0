// Few hosts, whose first windows follow what they compare: for whom they wait, and whom they miss.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <numeric>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::Process;
using simulation::SimulatedWire;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{1000};
constexpr std::chrono::hours kEver{1};

HostGroup group_of_all(Wire& wire) {
  std::vector<int> members(static_cast<std::size_t>(wire.size()));
  std::iota(members.begin(), members.end(), 0);
  return {wire, members};
}

/** An all_reduce that the members agree on meanwhile. */
void all_reduce(const HostGroup& group, GroupAgreement& agreement) {
  constexpr std::int64_t kCount = 16 << 10;
  std::vector<float> data(kCount);
  const auto agree = [&](Ahead* ahead) { EXPECT_TRUE(agreement.agree(1, ahead)); };
  AllReduce(group, true)
      .run(data.data(), kCount, DType::f32, combine_of(Reduce::sum, group.size()),
           {.agree = agree});
}

/** Not for whom there was the longest wait of its own. */
TEST(FewHosts, KnowWhoCameLast) {
  Cluster cluster(4, 1, {}, 1);
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kDeadline);
    try {
      wire.connect();
      const HostGroup group = group_of_all(wire);
      GroupAgreement agreement(group);
      if (process.rank() == 3) process.compute(milliseconds(10));
      if (process.rank() == 1) process.compute(milliseconds(15));
      all_reduce(group, agreement);
      if (process.rank() != 1) {
        EXPECT_EQ(agreement.last(), 1) << "says rank " << process.rank();
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << process.rank() << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + kEver);
}

/** All survivors tell the same, whomever they have waited for first. */
TEST(FewHosts, NameAllWhoAreStoppedAtOnce) {
  for (const std::vector<int>& stopped : {std::vector{1, 3}, {0, 2}, {1, 2}, {0, 1, 3}}) {
    Cluster cluster(4, 1, {}, 1);
    auto& scheduler = cluster.scheduler();
    for (const int rank : stopped) {
      scheduler.at(scheduler.now() + kDeadline / 10, [&cluster, rank] { cluster.stop(rank); });
      scheduler.at(scheduler.now() + kDeadline * 60,
                   [&cluster, rank] { cluster.continue_process(rank); });
    }
    int survivors = 0;
    cluster.start([&](Process& process) {
      SimulatedWire wire(process, 1, kDeadline);
      try {
        wire.connect();
        const HostGroup group = group_of_all(wire);
        GroupAgreement agreement(group);
        process.compute(kDeadline / 5);
        all_reduce(group, agreement);
        ADD_FAILURE() << "rank " << process.rank() << " misses nobody";
      } catch (const PeerLost& error) {
        if (std::find(stopped.begin(), stopped.end(), process.rank()) == stopped.end()) {
          ++survivors;
          EXPECT_EQ(error.ranks(), stopped) << "says rank " << process.rank();
        }
      }
      wire.leave();
    });
    scheduler.run(scheduler.now() + kEver);
    EXPECT_EQ(survivors, cluster.size() - static_cast<int>(stopped.size()));
  }
}

// --- Two hosts, which give each other all they have if they have several ranks ------------------

float value_of(int host, std::int64_t i) { return static_cast<float>((host + 2) * (i % 1013)); }

/** `count` floats of `host`, nothing but those from `begin` to `end`. */
std::vector<float> values_of(int host, std::int64_t count, std::int64_t begin, std::int64_t end) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = begin; i < end; ++i) {
    values[static_cast<std::size_t>(i)] = value_of(host, i);
  }
  return values;
}

void expect_sums(const std::vector<float>& sums) {
  for (std::int64_t i = 0; i < std::ssize(sums); ++i) {
    ASSERT_EQ(sums[static_cast<std::size_t>(i)], value_of(0, i) + value_of(1, i)) << i;
  }
}

/** Runs `body` on two hosts. */
template <class Body>
void on_two_hosts(const Body& body) {
  Cluster cluster(2, 1, {}, 1);
  int ended = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kDeadline);
    try {
      wire.connect();
      const HostGroup group(wire, {0, 1});
      body(group);
      ++ended;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << process.rank() << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + kEver);
  EXPECT_EQ(ended, 2);
}

/** The first segment may lie in one place, and the others in another. */
TEST(FewHosts, TwoAddWhatLiesElsewhere) {
  constexpr std::int64_t kCount = (std::int64_t{3} << 20U) / 4 + 7;
  for (const bool alone : {false, true}) {
    on_two_hosts([&](const HostGroup& group) {
      const AllReduce all_reduce(group, alone);
      const std::int64_t segment = all_reduce.first_segment(kCount, DType::f32);
      ASSERT_LT(segment, kCount);
      const std::vector<float> first = values_of(group.position(), segment, 0, segment);
      const std::vector<float> others = values_of(group.position(), kCount, segment, kCount);
      std::vector<float> data(static_cast<std::size_t>(kCount));
      all_reduce.run(data.data(), kCount, DType::f32, combine_of(Reduce::sum, 2),
                     {.first = first.data(), .others = others.data()});
      expect_sums(data);
    });
  }
}

// --- Long reductions to one, who adds up nothing where the wire is not fast ----------------------

/** How long hosts with links of 1 Gbit/s take to reduce `count` floats to `root`, whose sums are
 * right. */
std::chrono::duration<double> time_to_reduce(int hosts, int root, std::int64_t count) {
  Cluster cluster(hosts, 1, {.bytes_per_second = 125e6}, 1);
  cluster.set_room(std::int64_t{1} << 20U);
  auto& scheduler = cluster.scheduler();
  std::chrono::duration<double> took{};
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kDeadline);
    wire.connect();
    const HostGroup group = group_of_all(wire);
    const std::vector<float> own = values_of(process.rank(), count, 0, count);
    const bool in_place = root == 1;
    std::vector<float> sums = in_place ? own : std::vector<float>(own.size());
    EXPECT_TRUE(GroupAgreement(group).agree(1));
    const auto begin = scheduler.now();
    reduce_to(group, root, sums.data(), count, DType::f32, combine_of(Reduce::sum, hosts),
              in_place ? nullptr : own.data());
    if (process.rank() == root) {
      took = scheduler.now() - begin;
      float factor = 0;
      for (int host = 0; host < hosts; ++host) factor += value_of(host, 1);
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sums[static_cast<std::size_t>(i)], factor * value_of(-1, i)) << i;
      }
    }
    wire.leave();
  });
  scheduler.run(scheduler.now() + kEver);
  EXPECT_GT(took.count(), 0) << "rank " << root << " has no sums";
  return took;
}

TEST(FewHosts, ReduceLongMessagesInTheTimeOfTheirBytesOnALink) {
  for (const int hosts : {3, 4, 6}) {
    const std::int64_t others = hosts - 1;
    const std::int64_t fewest = others * (others - 1) << 15U;
    for (const int root : {0, 1, hosts - 1}) {
      for (const std::int64_t count : {fewest, fewest + 1, fewest + (std::int64_t{1} << 18U) + 5}) {
        const double link = static_cast<double>(count) * sizeof(float) / 125e6;
        EXPECT_LT(time_to_reduce(hosts, root, count).count(), 1.25 * link)
            << count << " elements from " << hosts << " hosts to " << root;
      }
      time_to_reduce(hosts, root, fewest - 1);
    }
  }
}

}  // namespace
}  // namespace tutti::test
