// Endpoints that are given as text, "host:port", and sockets that listen at them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** Where a process listens, or is to listen. */
struct NamedEndpoint {
  std::string text;  ///< as it was given
  std::vector<Address> addresses;
  std::uint16_t port = 0;
};

/** Looks the host up. `endpoint` is host:port. Blocks for as long as the system's resolver does.
 * Throws InvalidArgument that names it if there is no such host, or if it has no IPv4 address. */
NamedEndpoint resolve(const std::string& endpoint);

/** Listens at an endpoint of this machine. Throws SystemError naming it: if its port is in use,
 * or it is another machine's. */
Socket listen_at(const NamedEndpoint& endpoint);

}  // namespace tutti::mpi
