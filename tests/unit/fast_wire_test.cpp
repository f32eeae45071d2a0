// What hosts do otherwise where the wire between them is fast.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/one_way.hpp"
#include "unit/scripted_wire.hpp"

namespace tutti {
namespace {

using test::ScriptedWire;

constexpr std::int64_t kKiB = 1024;
constexpr int kRoot = 0;
constexpr int kSecond = 1;
constexpr int kThird = 2;

/** The third of three hosts, of whom each has connections with all others. */
class FastWireTest : public ::testing::Test {
 protected:
  FastWireTest() { wire_.passes = true; }
  /** Of whom it gets a broadcast of the first host. */
  int giver(std::int64_t bytes) const { return OneWayCall(group_, {kRoot, bytes}).giver(); }

  ScriptedWire wire_{kThird};
  HostGroup group_{wire_, {kRoot, kSecond, kThird}};
  GroupAgreement agreement_{group_};
};

TEST_F(FastWireTest, SumsGoThroughTheFirstHostUpToMoreBytes) {
  EXPECT_TRUE(agreement_.carries(8 * kKiB, 8 * kKiB));
  EXPECT_FALSE(agreement_.carries(8 * kKiB + 4, 8 * kKiB + 4));
  wire_.fast = true;
  EXPECT_TRUE(agreement_.carries(48 * kKiB, 48 * kKiB));
  EXPECT_FALSE(agreement_.carries(48 * kKiB + 4, 48 * kKiB + 4));
  EXPECT_FALSE(agreement_.carries(16 * kKiB, 144 * kKiB));
}

TEST_F(FastWireTest, TwoHostsAndManyDoTheSame) {
  std::vector<int> many;
  for (int rank = 0; rank <= Wire::kMostWithoutAhead; ++rank) many.push_back(rank);
  const HostGroup two(wire_, {kRoot, kThird});
  const HostGroup nine(wire_, many);
  for (const bool fast : {false, true}) {
    wire_.fast = fast;
    EXPECT_TRUE(GroupAgreement(two).carries(128 * kKiB, 128 * kKiB));
    EXPECT_FALSE(GroupAgreement(nine).carries(3 * kKiB, 3 * kKiB));
  }
}

TEST_F(FastWireTest, AllOfABroadcastComesFromTheRoot) {
  EXPECT_EQ(giver(5 * kKiB), kRoot);
  EXPECT_EQ(giver(6 * kKiB), kSecond);
  EXPECT_EQ(giver(64 * kKiB), kSecond);
  wire_.fast = true;
  EXPECT_EQ(giver(6 * kKiB), kRoot);
  EXPECT_EQ(giver(64 * kKiB), kRoot);
}

TEST_F(FastWireTest, UnlessItIsTooLongForSoManyHosts) {
  wire_.fast = true;
  const HostGroup four(wire_, {kRoot, kSecond, kThird, 3});
  EXPECT_EQ(OneWayCall(four, {kRoot, 42 * kKiB}).giver(), kRoot);
  EXPECT_EQ(OneWayCall(four, {kRoot, 43 * kKiB}).giver(), kSecond);
}

}  // namespace
}  // namespace tutti
