// Asks the kernel what this machine has.
#include "launch/machines/machine.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "base/available_memory.hpp"
#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;

std::vector<Processor> processors() {
  std::vector<Processor> found;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return found;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(static_cast<std::size_t>(number), &allowed)) continue;
    Processor processor{.number = number};
    std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(number) +
                  "/topology/physical_package_id") >>
        processor.socket;
    found.push_back(processor);
  }
  return found;
}

/** How many device files of GPUs there are. */
int count_gpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && parse_number<int>(name.substr(6))) ++count;
  }
  return count == 0 && fs::exists("/dev/dxg", error) ? 1 : count;  // inside Windows
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

bool same_address(const sockaddr* one, const sockaddr* other) {
  if (one == nullptr || other == nullptr || one->sa_family != other->sa_family) return false;
  if (one->sa_family == AF_INET) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in*>(one)->sin_addr,
                       &reinterpret_cast<const sockaddr_in*>(other)->sin_addr, 4) == 0;
  }
  return one->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(one)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr, 16) == 0;
}

/** A socket that holds a port, any that is free if it is 0; none if that is in use. */
FileDescriptor hold_port(int port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw SystemError("cannot make a socket", errno);
  const int reuse = port != 0 ? 1 : 0;  // a port of a job that has just ended is free
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return socket;
  }
  if (errno != EADDRINUSE) throw SystemError("cannot bind port " + std::to_string(port), errno);
  return {};
}

bool executable_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

/** The Python that tutti.run runs in, the one of the virtual environment that this program is
 * installed in, or the one in PATH. */
std::string find_python() {
  if (const auto python = environment("TUTTI_PYTHON")) return *python;
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (fs::exists(own.parent_path() / "pyvenv.cfg", error) && executable_file(own / "python")) {
    return own / "python";
  }
  for (const char* const name : {"python3", "python"}) {
    if (const auto found = find_in_path(name)) return *found;
  }
  refuse("there is no python3 in PATH");
}

}  // namespace

Machine this_machine() {
  Machine machine{.name = host_name(), .processors = processors(), .gpus = {}};
  const int gpus = count_gpus();
  machine.has_gpus = gpus > 0;
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    for (const std::string& gpu : split_list(visible)) {
      if (gpu.empty() || gpu == "-1" || gpu == "NoDevFiles") break;  // as CUDA reads it
      machine.gpus.push_back(gpu);
    }
  } else {
    for (int gpu = 0; gpu < gpus; ++gpu) machine.gpus.push_back(std::to_string(gpu));
  }
  return machine;
}

bool is_loopback(const std::string& host) {
  in_addr ipv4{};
  in6_addr ipv6{};
  if (::inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &ipv6) == 1) return IN6_IS_ADDR_LOOPBACK(&ipv6);
  return host == "localhost" || host.starts_with("localhost.") || host == "ip6-localhost" ||
         host == "ip6-loopback";
}

bool is_this_machine(const std::string& host) {
  if (is_loopback(host) || host == host_name()) return true;
  const Addresses addresses = look_up(host);
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(interfaces, &::freeifaddrs);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    for (const ifaddrs* own = interfaces; own != nullptr; own = own->ifa_next) {
      if (same_address(address->ai_addr, own->ifa_addr)) return true;
    }
  }
  return false;
}

int ReservedPorts::take() {
  FileDescriptor socket = hold_port(0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  if (!socket || ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw SystemError("there is no free port", EADDRINUSE);
  }
  const int port = ntohs(address.sin_port);
  sockets_.insert_or_assign(port, std::move(socket));
  return port;
}

void ReservedPorts::take(int port, const std::string& what) {
  FileDescriptor socket = hold_named_ ? hold_port(port) : FileDescriptor();
  const bool in_use = hold_named_ && !socket;
  if (in_use || !sockets_.try_emplace(port, std::move(socket)).second) {
    refuse(what, ": port ", port, " of ", host_name(), " is in use");
  }
}

std::optional<std::string> find_in_path(const std::string& name) {
  for (const std::string& folder : split_list(environment("PATH").value_or("/usr/bin:/bin"), ':')) {
    const fs::path path = fs::path(folder.empty() ? "." : folder) / name;
    if (executable_file(path)) return path;
  }
  return std::nullopt;
}

std::vector<std::string> resolve_program(const std::vector<std::string>& program, bool module) {
  std::vector<std::string> command = files_of_program(program.at(0), module);
  check_files(command);
  if (module) command.insert(command.end(), {"-m", program.front()});
  command.insert(command.end(), program.begin() + 1, program.end());
  return command;
}

std::vector<std::string> files_of_program(const std::string& name, bool module) {
  if (module) return {find_python()};
  if (name.ends_with(".py")) return {find_python(), name};
  if (name.find('/') != std::string::npos) return {name};
  if (const auto found = find_in_path(name)) return {*found};
  std::error_code error;
  refuse(name, ": no program of that name is in PATH on ", host_name(),
         fs::exists(name, error) ? " (for the one that is here: ./" + name + ")" : "");
}

void check_files(const std::vector<std::string>& files) {
  std::error_code error;
  for (const std::string& file : files) {
    if (!fs::exists(file, error)) refuse(file, ": there is no such file on ", host_name());
    if (fs::is_directory(file, error)) refuse(file, " is a folder, not a program");
    if (&file == &files.front() && !executable_file(file)) {
      refuse(file, " is not executable on ", host_name(), " (chmod +x ", file, ")");
    }
    if (&file != &files.front() && ::access(file.c_str(), R_OK) != 0) {
      refuse(file, " cannot be read on ", host_name());
    }
  }
}

void check_shared_memory(int ranks) {
  const AvailableMemory available = available_memory();
  if (available.fits(kSharedBytesPerRank, ranks)) return;
  throw SystemError(host_name() + " has too little shared memory for " + std::to_string(ranks) +
                        " ranks, which need 2.25 MiB each to meet: " + available.describe() +
                        " (docker run --shm-size)",
                    ENOSPC);
}

}  // namespace tutti::launch
