// Reads which of this process's sockets have sent the first packet of a connection, and got
// nothing.
#include "comm/mpi/unanswered.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/environment.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "comm/mpi/interface.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConnections = "/proc/self/net/tcp";
constexpr const char* kDescriptors = "/proc/self/fd";
constexpr unsigned kConnected = 1;  // as the kernel counts states in kConnections
constexpr unsigned kCalling = 2;
/** Ranks listen from here on; what the program itself calls elsewhere, as over https, is lower. */
constexpr unsigned long kLowestPort = 1024;

struct Connection {
  Address from = 0;
  Address to = 0;
  unsigned long port = 0;  // there
  unsigned state = 0;
  std::uint64_t inode = 0;
};

/** "0: 0100007F:9C40 0200007F:0400 02 00000000:00000000 02:000002AA 00000003  0  0 12345 ...". */
std::optional<Connection> parse(const std::string& line) {
  std::istringstream words(line);
  std::string from;
  std::string to;
  std::string skipped;
  Connection found;
  words >> skipped >> from >> to >> std::hex >> found.state >> std::dec;
  for (int i = 0; i < 5; ++i) words >> skipped;
  if (!(words >> found.inode)) return std::nullopt;
  const auto address = [](const std::string& text) {  // a word of the machine's, in network order
    return static_cast<Address>(std::stoul(text, nullptr, 16));
  };
  found.from = address(from);
  found.to = address(to);
  found.port = std::stoul(to.substr(to.find(':') + 1), nullptr, 16);
  return found;
}

/** Numbers of this process's sockets; none where the kernel does not say. */
std::set<std::uint64_t> own_sockets() {
  constexpr std::string_view kPrefix = "socket:[";
  std::set<std::uint64_t> numbers;
  std::error_code gone;
  for (fs::directory_iterator each(kDescriptors, gone); !gone && each != end(each);
       each.increment(gone)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(each->path(), closed).string();
    if (closed || !target.starts_with(kPrefix)) continue;
    const auto digits = std::string_view(target).substr(kPrefix.size());
    numbers.insert(parse_number<std::uint64_t>(digits.substr(0, digits.size() - 1)).value_or(0));
  }
  return numbers;
}

std::vector<Connection> own_connections() {
  const std::set<std::uint64_t> own = own_sockets();
  std::vector<Connection> found;
  std::ifstream file(kConnections);
  file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');  // the names of the columns
  for (std::string line; std::getline(file, line);) {
    const auto connection = parse(line);
    if (connection && own.contains(connection->inode)) found.push_back(*connection);
  }
  return found;
}

/** By which of this host's interfaces it calls, and from which address. */
std::string caller(Address address, const std::vector<Interface>& all) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Interface& each) { return each.address == address; });
  return describe({found != all.end() ? *found : Interface{"an interface", address}});
}

/** What is to be changed. */
std::string setting() {
  for (const char* const name : {"TUTTI_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"}) {
    if (const auto value = environment(name)) {
      return std::string(name) + " is '" + *value + "', which is to name one that does";
    }
  }
  return "TUTTI_SOCKET_IFNAME may name one that does";
}

std::string in_vain(Address from, Address to) {
  const std::vector<Interface> all = interfaces();
  const std::string host = host_name();
  return "no answer from " + dotted(to) + " to " + host + ", which has called it by " +
         caller(from, all) + " for " + seconds_text(UnansweredCalls::kPatience) +
         ": that interface does not lead there, or a firewall is between. " + setting() + "; " +
         host + " has " + describe(all);
}

}  // namespace

void UnansweredCalls::look(Clock::time_point now) {
  const std::vector<Connection> connections = own_connections();
  for (const Connection& each : connections) {
    if (each.state == kCalling && each.port >= kLowestPort) {
      calls_.try_emplace(each.to, Call{now, each.from});
    }
  }
  // A call that the kernel has given up was in vain, too. Whoever is connected, be it by a call of
  // its own, is led to.
  for (const Connection& each : connections) {
    if (each.state == kConnected) calls_.erase(each.to);
  }
  for (const auto& [to, call] : calls_) {
    if (now - call.begun >= kPatience) throw CommunicationError(in_vain(call.from, to));
  }
}

}  // namespace tutti::mpi
