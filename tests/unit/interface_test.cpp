// Which interfaces lists mean: TUTTI_SOCKET_IFNAME's and Open MPI's.
#include "comm/mpi/meeting/interface.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/folder.hpp"
#include "tutti/error.hpp"

namespace {

bool g_is_silent = false;  // the kernel says nothing of interfaces, as in some containers

}  // namespace

/** Stands in front of the C library's, whose name for the list it has. */
extern "C" int getifaddrs(ifaddrs** __ifap) noexcept {
  if (g_is_silent) {
    errno = EPERM;
    return -1;
  }
  static const auto real = reinterpret_cast<int (*)(ifaddrs**)>(::dlsym(RTLD_NEXT, "getifaddrs"));
  return real(__ifap);
}

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

TEST(Interface, IPv6AloneIsNamedAndHasNoNetwork) {
  std::vector<Interface> some = all();
  some.push_back({"ib0"});
  EXPECT_EQ(describe(by_prefix("ib", some)), "ib0 (IPv6 alone)");
  EXPECT_EQ(describe(by_prefix("^eth,docker", some)), "ib0 (IPv6 alone)");
  EXPECT_EQ(describe(by_name_or_network("ib0", some)), "ib0 (IPv6 alone)");
  EXPECT_EQ(by_name_or_network("0.0.0.0/0", some).size(), 4U);
}

TEST(Interface, ThisHostHasLoopback) {
  const auto found = by_prefix("=lo", interfaces());
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found.front().is_loopback);
}

TEST(Interface, AJobOnOneHostNeedsNone) {
  g_is_silent = true;
  EXPECT_THROW(chosen_interfaces(), SystemError);
  EXPECT_NO_THROW(check_interfaces());
  EXPECT_NO_THROW(hand_interfaces_to_mpi());
  ::setenv("SLURM_STEP_NUM_NODES", "2", 1);
  EXPECT_THROW(check_interfaces(), SystemError);
  ::unsetenv("SLURM_STEP_NUM_NODES");
  g_is_silent = false;
}

/** Of two settings besides tutti's own, one of which says the same. */
TEST(Interface, WhatContradictsTheListIsNamed) {
  ::setenv("TUTTI_SOCKET_IFNAME", "=lo", 1);
  ::setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
  EXPECT_NO_THROW(hand_interfaces_to_mpi());
  ::setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0", 1);
  try {
    hand_interfaces_to_mpi();
    ADD_FAILURE() << "nothing is refused";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "TUTTI_SOCKET_IFNAME is '=lo' (lo), but Open MPI was told "
                 "OMPI_MCA_btl_tcp_if_exclude = 'docker0': say it once");
  }
  ::unsetenv("OMPI_MCA_btl_tcp_if_exclude");
  ::unsetenv("OMPI_MCA_btl_tcp_if_include");
  ::unsetenv("TUTTI_SOCKET_IFNAME");
}

// --- Fabrics ------------------------------------------------------------------------------------

/** A device of the class infiniband in `classes`, one of whose ports is in `state`. */
void add_device(const std::filesystem::path& classes, const char* name, const char* state) {
  const auto port = classes / "infiniband" / name / "ports" / "1";
  std::filesystem::create_directories(port);
  std::ofstream(port / "state") << state << '\n';
}

TEST(Fabric, IsADeviceThatHasALink) {
  const test::Folder classes;
  EXPECT_FALSE(has_fabric(classes.path()));
  std::filesystem::create_directories(classes / "infiniband");
  EXPECT_FALSE(has_fabric(classes.path()));
  add_device(classes.path(), "mlx5_0", "1: DOWN");
  EXPECT_FALSE(has_fabric(classes.path()));
  add_device(classes.path(), "mlx5_1", "4: ACTIVE");
  EXPECT_TRUE(has_fabric(classes.path()));
}

TEST(Fabric, WhatSaysNothingOfPortsIsOne) {
  const test::Folder classes;
  std::filesystem::create_directories(classes / "cxi" / "cxi0");
  EXPECT_TRUE(has_fabric(classes.path()));
}

TEST(Fabric, WhoIsToldWhatCarriesCollectivesDoesNotLookForOne) {
  ::setenv("TUTTI_BETWEEN_HOSTS", "tcp", 1);
  EXPECT_EQ(reason_for_mpi(), nullptr);
  ::setenv("TUTTI_BETWEEN_HOSTS", "mpi", 1);
  EXPECT_STREQ(reason_for_mpi(), "TUTTI_BETWEEN_HOSTS is mpi");
  ::setenv("TUTTI_BETWEEN_HOSTS", "auto", 1);
  EXPECT_EQ(reason_for_mpi() != nullptr, has_fabric());
  ::unsetenv("TUTTI_BETWEEN_HOSTS");
}

}  // namespace
}  // namespace tutti::mpi
