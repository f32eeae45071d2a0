// Looks hosts up by their names, and listens where others have been told.
#include "comm/mpi/meeting/named_endpoint.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/** Whether it got the port at this address; otherwise errno says why not. */
bool listens(const Socket& socket, Address address, std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = address;
  const int on = 1;  // connections of an earlier job that are still being closed do not matter
  return socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
         ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
         ::listen(socket.get(), SOMAXCONN) == 0;
}

}  // namespace

NamedEndpoint resolve(const std::string& endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  const auto port = parse_number<std::uint16_t>(std::string_view(endpoint).substr(colon + 1));
  if (colon == std::string::npos || !port) refuse(endpoint, " is not host:port");
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int code = ::getaddrinfo(endpoint.substr(0, colon).c_str(), nullptr, &hints, &first);
  if (code != 0) {
    refuse("the host of ", endpoint,
           " cannot be looked up, or has no IPv4 address: ", ::gai_strerror(code));
  }
  const AddressList list(first, &::freeaddrinfo);
  NamedEndpoint named{.text = endpoint, .addresses = {}, .port = *port};
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const Address address = reinterpret_cast<const sockaddr_in*>(entry->ai_addr)->sin_addr.s_addr;
    const auto same = std::find(named.addresses.begin(), named.addresses.end(), address);
    if (same == named.addresses.end()) named.addresses.push_back(address);
  }
  return named;
}

Socket listen_at(const NamedEndpoint& endpoint) {
  int error = EADDRNOTAVAIL;
  for (const Address address : endpoint.addresses) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listens(socket, address, endpoint.port)) return socket;
    if (errno != EADDRNOTAVAIL) error = errno;  // of the addresses of this machine, if any
  }
  const char* const why = error == EADDRNOTAVAIL ? ", which is no address of this machine" : "";
  throw SystemError("cannot listen at " + endpoint.text + why, error);
}

}  // namespace tutti::mpi
