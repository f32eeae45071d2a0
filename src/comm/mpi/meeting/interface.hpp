// Which of this host's network interfaces the connections between hosts use, and whether MPI has
// something faster.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** An address of an interface that is up. */
struct Interface {
  std::string name;
  Address address = 0;  ///< 0: it has addresses of IPv6 alone, which only Open MPI uses
  bool is_loopback = false;
};

/** Those of this host: its addresses of IPv4, and what has only global ones of IPv6. Throws
 * SystemError. */
std::vector<Interface> interfaces();

/**
 * Those of `all` that `list` means, as NCCL_SOCKET_IFNAME does: names separated by commas, each the
 * beginning of a name ("eth" is eth0 and eth1), or with = in front of the list exact ("=eth0"), or
 * with ^ all but those and loopback ("^docker,virbr", "^=eth1").
 */
std::vector<Interface> by_prefix(std::string_view list, const std::vector<Interface>& all);

/** Those of `all` that an item of Open MPI's btl_tcp_if_include means: a name, or a network as in
 * "10.1.0.0/16". */
std::vector<Interface> by_name_or_network(std::string_view item, const std::vector<Interface>& all);

/**
 * Those that connections between hosts may use: what TUTTI_SOCKET_IFNAME says, or else Open MPI's
 * OMPI_MCA_btl_tcp_if_include or _exclude, or else all but loopback. Throws InvalidArgument with
 * the variable and what this host has if TUTTI_SOCKET_IFNAME names what is not there, or in a job
 * of several hosts either of them does or names loopback, on which Open MPI would wait;
 * SystemError.
 */
std::vector<Interface> chosen_interfaces();

/** Throws as that does; of a job on one host, which needs no interfaces, no SystemError: a
 * container may keep processes from asking the kernel. */
void check_interfaces();

/** Before MPI_Init: checks chosen_interfaces() and hands them on to Open MPI if they are
 * TUTTI_SOCKET_IFNAME's. Throws InvalidArgument where Open MPI was told others. */
void hand_interfaces_to_mpi();

/** Whether this host has a network that MPI may drive without TCP: InfiniBand, RoCE, Omni-Path, EFA
 * (which the kernel counts among the first), of which a port is up, or Slingshot. `classes`: where
 * the kernel lists devices by their class. */
bool has_fabric(const std::filesystem::path& classes = "/sys/class");

/** What carries collectives between hosts. */
enum class Carrier : std::uint8_t { automatic, tcp, mpi };
/** What TUTTI_BETWEEN_HOSTS asks for. Throws InvalidArgument if it is none. */
Carrier asked_carrier();
/** Why MPI is to carry collectives from and to this host; null if TCP connections may. */
const char* reason_for_mpi();

/** "10.1.0.7". */
std::string dotted(Address address);
/** "eth0 (10.1.0.7), eth1 (10.2.0.7), ib0 (IPv6 alone)". */
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace tutti::mpi
