// Where a process listens for connections of its job, as others are told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** A random number that shows whoever has been told it to be no stranger. */
using Token = std::array<std::byte, 16>;

/** Under which addresses a process listens. Plain bytes. */
struct Endpoint {
  static constexpr std::size_t kMostAddresses = 32;
  Token token{};  ///< proves to it that a connection comes from who was given this, and the reverse
  std::uint64_t network = 0;
  std::uint16_t port = 0;  ///< 0: nowhere
  std::uint16_t address_count = 0;
  std::array<Address, kMostAddresses> addresses{};

  /** Of this process, which listens at `port`: its addresses of IPv4 on chosen_interfaces(), and
   * throws as that does. */
  static Endpoint at(std::uint16_t port);
};

/** Where who gave `endpoint` may be reached: within one network stack by loopback, which nothing
 * blocks. `own_network` is this process'. */
std::vector<Address> addresses_of(const Endpoint& endpoint, std::uint64_t own_network);

}  // namespace tutti::mpi
