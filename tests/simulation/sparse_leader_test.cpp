// What the leaders of few and many hosts do for a sum of sparse vectors.
#include "comm/hosts/sparse.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/layout.hpp"
#include "comm/simulation/wire.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::Process;
using simulation::SimulatedWire;

constexpr std::int64_t kCount = 5000;

/** What one host has: more in the middle, where all hosts have something. */
struct Vector {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;

  explicit Vector(int host) {
    std::mt19937 random(static_cast<unsigned>(host));
    for (std::uint32_t index = 0; index < kCount; ++index) {
      const bool is_middle = index / 100 == 25;
      if (!is_middle && random() % 97 != 0) continue;
      indices.push_back(index);
      values.push_back(static_cast<float>(random() % 1999) * 1e-3F - 0.7F);
    }
  }
  SparseView view() const {
    return {indices.data(), values.data(), static_cast<std::int64_t>(indices.size())};
  }
};

std::vector<int> numbers(int hosts) {
  std::vector<int> all(static_cast<std::size_t>(hosts));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/** In the order of the hosts. */
std::vector<float> expected_sum(int hosts) {
  std::vector<float> sum(static_cast<std::size_t>(kCount), 0.0F);
  for (int host = 0; host < hosts; ++host) {
    const Vector one(host);
    for (std::size_t i = 0; i < one.indices.size(); ++i) sum[one.indices[i]] += one.values[i];
  }
  return sum;
}

/** What one leader has in the end, and has sent for it. */
struct Outcome {
  SparseAlgorithm algorithm = SparseAlgorithm::none;
  std::vector<float> sum = std::vector<float>(static_cast<std::size_t>(kCount), -1.0F);
  std::size_t sizes = 0;  ///< of so many packets
  std::int64_t sent = 0;
};

void add_up(SimulatedWire& wire, const HostGroup& group, int host, Outcome& outcome) {
  const int hosts = group.size();
  const AllReduce all_reduce(group, true);
  SparseLeader leader(group, all_reduce, 1);
  const Vector own(host);
  const SparseView view = own.view();
  const std::int64_t before = wire.bytes_sent();
  leader.begin(kCount);
  leader.add(kCount, std::span(&view, 1));
  outcome.algorithm = leader.plan().algorithm;
  if (outcome.algorithm == SparseAlgorithm::dense) {
    leader.reduce_dense(outcome.sum.data(), 1);
  } else {
    const bool split = outcome.algorithm == SparseAlgorithm::split;
    PacketSizes sizes;
    const Scratch packets = split ? leader.split(sizes) : leader.gather(sizes);
    sum_packets(sizes, split ? hosts : gathered_ranges(hosts), packets.data(),
                Layout(numbers(hosts)), outcome.sum.data(), kCount, 1);
    outcome.sizes = sizes.size();
  }
  outcome.sent = wire.bytes_sent() - before;
}

std::vector<Outcome> run(int hosts, const char* algorithm) {
  ::setenv("TUTTI_SPARSE", algorithm, 1);
  Cluster cluster(hosts, 1, {}, 1);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(hosts));
  int done = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, std::chrono::seconds(5));
    try {
      wire.connect();
      const HostGroup group(wire, numbers(hosts));
      add_up(wire, group, process.rank(), outcomes[static_cast<std::size_t>(process.rank())]);
      ++done;
      GroupAgreement(group).agree(1);  // nobody leaves before
    } catch (const std::exception& error) {
      ADD_FAILURE() << "host " << process.rank() << " of " << hosts << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  ::unsetenv("TUTTI_SPARSE");
  EXPECT_EQ(done, hosts);
  return outcomes;
}

TEST(SparseLeader, HasTheSameBitsHoweverPacketsTravel) {
  for (const int hosts : {2, 3, 32, 33, 70}) {
    const std::vector<float> expected = expected_sum(hosts);
    for (const char* const algorithm : {"gather", "split", "dense"}) {
      for (const Outcome& outcome : run(hosts, algorithm)) {
        EXPECT_EQ(name_of(outcome.algorithm), algorithm);
        EXPECT_EQ(outcome.sum, expected) << hosts << " hosts, " << algorithm;
      }
    }
  }
}

/** The table of sizes, which every rank gets, and what is sent for it. */
TEST(SparseLeader, TablesGrowAsTheHostsDo) {
  constexpr int kHosts = 100;
  const auto room = static_cast<std::int64_t>(Vector(0).indices.size() * 2 * sizeof(float)) + 1024;
  for (const char* const algorithm : {"gather", "split"}) {
    for (const Outcome& outcome : run(kHosts, algorithm)) {
      ASSERT_EQ(outcome.sizes, static_cast<std::size_t>(kHosts)) << algorithm;
      ASSERT_LT(outcome.sent, kHosts * room) << algorithm;
    }
  }
}

}  // namespace
}  // namespace tutti::test
