// Which interfaces lists mean: TUTTI_SOCKET_IFNAME's and Open MPI's.
#include "comm/mpi/interface.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti::mpi {
namespace {

Interface interface(const char* name, const char* address, bool is_loopback = false) {
  Interface made{name, 0, is_loopback};
  ::inet_pton(AF_INET, address, &made.address);
  return made;
}

const std::vector<Interface>& all() {
  static const std::vector<Interface> some{
      interface("lo", "127.0.0.1", true), interface("eth0", "10.1.0.7"),
      interface("eth01", "10.2.0.7"), interface("docker0", "172.17.0.1")};
  return some;
}

TEST(Interface, PrefixesAndExactNamesAndWhatIsExcluded) {
  EXPECT_EQ(describe(by_prefix("eth", all())), "eth0 (10.1.0.7), eth01 (10.2.0.7)");
  EXPECT_EQ(describe(by_prefix("docker,eth01", all())), "eth01 (10.2.0.7), docker0 (172.17.0.1)");
  EXPECT_EQ(describe(by_prefix("=eth0", all())), "eth0 (10.1.0.7)");
  EXPECT_EQ(describe(by_prefix("^docker", all())), "eth0 (10.1.0.7), eth01 (10.2.0.7)");
  EXPECT_EQ(describe(by_prefix("^=eth0,docker0", all())), "eth01 (10.2.0.7)");
  EXPECT_EQ(describe(by_prefix("lo", all())), "lo (127.0.0.1)");
  EXPECT_EQ(describe(by_prefix("ib", all())), "none");
}

TEST(Interface, OpenMpisNamesAndNetworks) {
  EXPECT_EQ(describe(by_name_or_network("eth0", all())), "eth0 (10.1.0.7)");
  EXPECT_EQ(describe(by_name_or_network("10.2.0.0/16", all())), "eth01 (10.2.0.7)");
  EXPECT_EQ(by_name_or_network("10.0.0.0/8", all()).size(), 2U);
  EXPECT_EQ(by_name_or_network("0.0.0.0/0", all()).size(), 4U);
  EXPECT_EQ(describe(by_name_or_network("eth", all())), "none");
  EXPECT_EQ(describe(by_name_or_network("10.2.0.0/33", all())), "none");
}

TEST(Interface, ThisHostHasLoopback) {
  const auto found = by_prefix("=lo", interfaces());
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found.front().is_loopback);
}

}  // namespace
}  // namespace tutti::mpi
