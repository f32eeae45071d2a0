// Reads TUTTI_SOCKET_IFNAME, TUTTI_BETWEEN_HOSTS and Open MPI's settings, and compares them with
// what the kernel has.
#include "comm/mpi/meeting/interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwn = "TUTTI_SOCKET_IFNAME";
constexpr const char* kInclude = "OMPI_MCA_btl_tcp_if_include";
constexpr const char* kExclude = "OMPI_MCA_btl_tcp_if_exclude";
constexpr const char* kCarrier = "TUTTI_BETWEEN_HOSTS";

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    if (end > 0) items.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return items;
}

/** Whether mpiexec or srun says that the job has ranks on other hosts. */
bool spans_hosts() {
  const auto number = [](const char* name) {
    return parse_number<int>(environment(name).value_or("0")).value_or(0);
  };
  return number("OMPI_COMM_WORLD_SIZE") > number("OMPI_COMM_WORLD_LOCAL_SIZE") ||
         number("SLURM_STEP_NUM_NODES") > 1;
}

/** Refuses a variable that means nothing here, or nothing that other hosts can reach. */
void check_found(const char* variable, std::string_view value, const std::vector<Interface>& found,
                 const std::vector<Interface>& all) {
  if (found.empty()) {
    refuse(variable, " has '", value, "', which is no interface of ", host_name(),
           " that is up and has an address; there are ", describe(all));
  }
  const bool loopback = std::any_of(found.begin(), found.end(),
                                    [](const Interface& each) { return each.is_loopback; });
  if (loopback && spans_hosts()) {
    refuse(variable, " has '", value, "', which is loopback: other hosts are not reached by it; ",
           host_name(), " has ", describe(all));
  }
}

std::vector<Interface> included(const std::string& list, const std::vector<Interface>& all) {
  std::vector<Interface> chosen;
  for (const std::string_view item : items_of(list)) {
    const std::vector<Interface> found = by_name_or_network(item, all);
    if (spans_hosts()) check_found(kInclude, item, found, all);
    chosen.insert(chosen.end(), found.begin(), found.end());
  }
  return chosen;
}

std::vector<Interface> without(const std::string& list, std::vector<Interface> all) {
  std::erase_if(all, [&](const Interface& each) {
    const std::vector<std::string_view> items = items_of(list);
    return each.is_loopback || std::any_of(items.begin(), items.end(), [&](std::string_view item) {
             return !by_name_or_network(item, {each}).empty();
           });
  });
  return all;
}

std::string names_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> names;
  for (const Interface& each : interfaces) names.push_back(each.name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

/** Whether it is an address of this kind, of an interface that is up. */
bool is_up(const ifaddrs& entry, int family) {
  return (entry.ifa_flags & IFF_UP) != 0 && entry.ifa_addr != nullptr &&
         entry.ifa_addr->sa_family == family;
}

/** Whether an address of IPv6 is more than those that every interface has. */
bool is_global(const ifaddrs& entry) {
  const auto* const address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return (entry.ifa_flags & IFF_LOOPBACK) == 0 && IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) == 0;
}

/** None of a folder that cannot be read. */
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code unreadable;
  std::vector<fs::path> entries;
  for (fs::directory_iterator each(folder, unreadable); !unreadable && each != end(each);
       each.increment(unreadable)) {
    entries.push_back(each->path());
  }
  return entries;
}

/** Whether a port of an InfiniBand device has a link, as "4: ACTIVE" says, or may have one. */
bool has_link(const fs::path& port) {
  std::ifstream file(port / "state");
  std::string state;
  return !std::getline(file, state) || state.find("ACTIVE") != std::string::npos;
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw SystemError("cannot list the network's interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_up(*entry, AF_INET)) continue;
    found.push_back({entry->ifa_name,
                     reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr,
                     (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_there = std::any_of(found.begin(), found.end(), [&](const Interface& each) {
      return each.name == entry->ifa_name;
    });
    if (!is_there && is_up(*entry, AF_INET6) && is_global(*entry)) {
      found.push_back({entry->ifa_name});
    }
  }
  return found;
}

std::vector<Interface> by_prefix(std::string_view list, const std::vector<Interface>& all) {
  const bool excludes = list.starts_with('^');
  if (excludes) list.remove_prefix(1);
  const bool is_exact = list.starts_with('=');
  if (is_exact) list.remove_prefix(1);
  const std::vector<std::string_view> items = items_of(list);
  std::vector<Interface> chosen;
  for (const Interface& each : all) {
    const bool named = std::any_of(items.begin(), items.end(), [&](std::string_view item) {
      return is_exact ? each.name == item : each.name.starts_with(item);
    });
    if (excludes ? !named && !each.is_loopback : named) chosen.push_back(each);
  }
  return chosen;
}

std::vector<Interface> by_name_or_network(std::string_view item,
                                          const std::vector<Interface>& all) {
  const std::size_t slash = item.find('/');
  const auto bits =
      slash == std::string_view::npos ? std::nullopt : parse_number<int>(item.substr(slash + 1));
  in_addr network{};
  const bool is_network =
      bits && *bits >= 0 && *bits <= 32 &&
      ::inet_pton(AF_INET, std::string(item.substr(0, slash)).c_str(), &network) == 1;
  const std::uint64_t mask = is_network ? (std::uint64_t{0xFFFFFFFF} << (32 - *bits)) : 0;
  std::vector<Interface> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const Interface& each) {
    if (!is_network) return each.name == item;
    return each.address != 0 && ((ntohl(each.address) ^ ntohl(network.s_addr)) & mask) == 0;
  });
  return found;
}

std::vector<Interface> chosen_interfaces() {
  const std::vector<Interface> all = interfaces();
  if (const auto own = environment(kOwn)) {
    std::vector<Interface> chosen = by_prefix(*own, all);
    check_found(kOwn, *own, chosen, all);
    return chosen;
  }
  if (const auto list = environment(kInclude)) return included(*list, all);
  return without(environment(kExclude).value_or(""), all);
}

void check_interfaces() {
  try {
    chosen_interfaces();
  } catch (const SystemError&) {
    if (spans_hosts()) throw;
  }
}

void hand_interfaces_to_mpi() {
  const auto own = environment(kOwn);
  if (!own) return check_interfaces();
  std::vector<Interface> chosen = chosen_interfaces();
  const auto has_ipv4 = [](const Interface& each) { return each.address != 0; };
  const bool are_named = own->starts_with('=') || environment(kInclude);
  // Open MPI may be without IPv6, and without TCP if it is told of an interface that it cannot use.
  if (!are_named && std::any_of(chosen.begin(), chosen.end(), has_ipv4)) {
    std::erase_if(chosen, std::not_fn(has_ipv4));
  }
  const std::string names = names_of(chosen);
  const auto told = environment(kInclude);
  const auto told_not = environment(kExclude);
  if (told_not || (told && names_of(included(*told, interfaces())) != names)) {
    refuse(kOwn, " is '", *own, "' (", names, "), but Open MPI was told ",
           told_not ? kExclude : kInclude, " = '", told_not ? *told_not : *told, "': say it once");
  }
  ::setenv(kInclude, names.c_str(), 1);
}

bool has_fabric(const fs::path& classes) {
  for (const char* const one : {"infiniband", "cxi"}) {
    for (const fs::path& device : entries_of(classes / one)) {
      const std::vector<fs::path> ports = entries_of(device / "ports");
      if (ports.empty() || std::any_of(ports.begin(), ports.end(), has_link)) return true;
    }
  }
  return false;
}

Carrier asked_carrier() {
  const auto text = environment(kCarrier);
  if (!text || *text == "auto") return Carrier::automatic;
  if (*text == "tcp") return Carrier::tcp;
  if (*text == "mpi") return Carrier::mpi;
  throw InvalidArgument(std::string(kCarrier) + " is '" + *text +
                        "', but must be auto, tcp or mpi");
}

const char* reason_for_mpi() {
  const Carrier asked = asked_carrier();
  if (asked == Carrier::mpi) return "TUTTI_BETWEEN_HOSTS is mpi";
  if (asked == Carrier::automatic && has_fabric()) {
    return "this host has a fabric, and TUTTI_BETWEEN_HOSTS is not tcp";
  }
  return nullptr;
}

std::string dotted(Address address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& each : interfaces) {
    text += (text.empty() ? "" : ", ") + each.name + " (" +
            (each.address == 0 ? "IPv6 alone" : dotted(each.address)) + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace tutti::mpi
