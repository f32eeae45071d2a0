// Tells where this process listens.
#include "comm/mpi/meeting/endpoint.hpp"

#include <algorithm>

#include "base/system.hpp"
#include "comm/mpi/meeting/interface.hpp"

namespace tutti::mpi {

Endpoint Endpoint::at(std::uint16_t port) {
  Endpoint endpoint;
  fill_with_random(endpoint.token, "a connection between hosts");
  endpoint.network = network_id(host_name());
  endpoint.port = port;
  std::vector<Interface> chosen = chosen_interfaces();
  std::erase_if(chosen, [](const Interface& each) { return each.address == 0; });
  const std::size_t count = std::min(chosen.size(), kMostAddresses);
  std::transform(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(count),
                 endpoint.addresses.begin(), [](const Interface& each) { return each.address; });
  endpoint.address_count = static_cast<std::uint16_t>(count);
  return endpoint;
}

std::vector<Address> addresses_of(const Endpoint& endpoint, std::uint64_t own_network) {
  if (endpoint.port == 0) return {};
  if (endpoint.network == own_network && own_network != 0) return {loopback_address()};
  return {endpoint.addresses.begin(), endpoint.addresses.begin() + endpoint.address_count};
}

}  // namespace tutti::mpi
