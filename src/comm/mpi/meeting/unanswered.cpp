// Reads which of this process's sockets have sent the first packet of a connection, and got
// nothing.
#include "comm/mpi/meeting/unanswered.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/environment.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "comm/mpi/meeting/interface.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConnections = "/proc/self/net/tcp";
constexpr const char* kDescriptors = "/proc/self/fd";
constexpr unsigned kConnected = 1;  // as the kernel counts states in kConnections
constexpr unsigned kCalling = 2;
/** Ranks listen from here on; what the program itself calls elsewhere, as over https, is lower. */
constexpr std::uint16_t kLowestPort = 1024;

struct Connection {
  Address from = 0;
  Address to = 0;
  std::uint16_t port = 0;  // there
  unsigned state = 0;
  bool asked_again = false;
  std::uint64_t inode = 0;
};

bool is_call(const Connection& connection) {
  return connection.state == kCalling && connection.port >= kLowestPort;
}

template <class Number>
Number hexadecimal(std::string_view digits) {
  Number number{};
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return number;
}

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

/** "  12: 0100007F:9C40 0200007F:0400 02 00000000:00000000 02:000002AA 00000003  0  0 12345 ...":
 * nothing of one that is neither begun nor there. Others, and those that have ended, may be many:
 * of them no more is read than that. */
std::optional<Connection> parse(std::string_view line) {
  constexpr std::size_t kState = 29;  // behind the first colon, from which on columns are as wide
  if (const auto colon = line.find(':'); colon != line.npos) line.remove_prefix(colon + 1);
  if (line.size() <= kState + 2) return std::nullopt;
  Connection found;
  found.state = hexadecimal<unsigned>(line.substr(kState, 2));
  if (found.state != kConnected && found.state != kCalling) return std::nullopt;
  // Addresses are words of the machine's, in network order.
  found.from = hexadecimal<Address>(line.substr(1, 8));
  found.to = hexadecimal<Address>(line.substr(15, 8));
  found.port = hexadecimal<std::uint16_t>(line.substr(24, 4));
  line.remove_prefix(kState + 2);
  for (int i = 0; i < 2; ++i) next_word(line);
  found.asked_again = hexadecimal<unsigned>(next_word(line)) > 0;
  for (int i = 0; i < 2; ++i) next_word(line);
  found.inode = parse_number<std::uint64_t>(next_word(line)).value_or(0);
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

/** Those that are begun, and those that are there; none if none is begun, unless `all`. */
std::vector<Connection> own_connections(bool all) {
  std::vector<Connection> found;
  std::ifstream file(kConnections);
  file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');  // the names of the columns
  for (std::string line; std::getline(file, line);) {
    if (const auto connection = parse(line)) found.push_back(*connection);
  }
  if (!all && std::none_of(found.begin(), found.end(), is_call)) return {};
  const std::set<std::uint64_t> own = own_sockets();
  std::erase_if(found, [&](const Connection& each) { return !own.contains(each.inode); });
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
      return std::string(name) + " is '" + *value + "', which is to name one that leads there";
    }
  }
  return "TUTTI_SOCKET_IFNAME may name one that leads there";
}

std::string in_vain(Address from, Address to) {
  const std::vector<Interface> all = interfaces();
  const std::string host = host_name();
  return "no answer from " + dotted(to) + " to " + host + ", which has called it by " +
         caller(from, all) + " for " + seconds_text(UnansweredCalls::kPatience) +
         ": that host is off, that interface does not lead there, or a firewall is between. " +
         setting() + "; " + host + " has " + describe(all);
}

}  // namespace

void UnansweredCalls::look(Clock::time_point now) {
  const std::vector<Connection> connections = own_connections(!calls_.empty());
  // Whoever is connected, be it by a call of its own, is led to.
  std::set<Address> reached;
  for (const Connection& each : connections) {
    if (each.state == kConnected) reached.insert(each.to);
  }
  std::erase_if(calls_, [&](const auto& each) { return reached.contains(each.second.to); });
  std::set<std::uint64_t> present;
  for (const Connection& each : connections) {
    if (!is_call(each) || reached.contains(each.to)) continue;
    present.insert(each.inode);
    Call& call = calls_.try_emplace(each.inode, Call{now, each.from, each.to}).first->second;
    call.asked_again = each.asked_again;
  }
  std::erase_if(calls_, [&](const auto& each) {
    return !each.second.asked_again && !present.contains(each.first);
  });
  for (const auto& [inode, call] : calls_) {
    if (now - call.begun >= kPatience) throw CommunicationError(in_vain(call.from, call.to));
  }
}

}  // namespace tutti::mpi
