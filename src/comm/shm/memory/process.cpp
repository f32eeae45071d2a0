// Watches processes through pidfds.
#include "comm/shm/memory/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** What follows the program's name in /proc/PID/stat: field 3 and so on. Empty if the process is
 * gone. */
std::istringstream fields_of(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  // The second field is the name in parentheses, which may hold anything.
  const auto end_of_name = line.rfind(')');
  return std::istringstream(end_of_name == std::string::npos ? "" : line.substr(end_of_name + 1));
}

/** Field 22; 0 if the process is gone. */
std::uint64_t start_time_of(std::int32_t pid) {
  std::istringstream rest = fields_of(pid);
  std::string skipped;
  for (int field = 3; field < 22; ++field) rest >> skipped;
  std::uint64_t start_time = 0;
  rest >> start_time;
  return start_time;
}

/** The namespace in which this process has its number; 0 if that is not known. */
std::uint64_t own_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/** Whether the number of `process` means something to this one. */
bool is_visible(const ProcessId& process) {
  static const std::uint64_t own = own_namespace();
  return process.pid_namespace == own;
}

}  // namespace

ProcessId ProcessId::self() {
  ProcessId id;
  id.pid = ::getpid();
  id.start_time = start_time_of(id.pid);
  id.pid_namespace = own_namespace();
  return id;
}

bool is_stopped(const ProcessId& process) {
  if (!is_visible(process)) return false;
  // Waits ask this now and then, and take no memory.
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "/proc/%d/stat", process.pid);
  const FileDescriptor file(::open(name.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  std::array<char, 128> text{};
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  const std::string_view stat(text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  const std::size_t end_of_name = stat.rfind(") ");
  if (end_of_name == std::string_view::npos || end_of_name + 2 >= stat.size()) return false;
  const char state = stat[end_of_name + 2];
  return state == 'T' || state == 't';
}

std::int64_t swapped_bytes(const ProcessId& process) {
  if (!is_visible(process)) return 0;
  std::ifstream file("/proc/" + std::to_string(process.pid) + "/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("VmSwap:")) return std::strtoll(line.c_str() + 7, nullptr, 10) * 1024;
  }
  return 0;
}

ProcessWatch::ProcessWatch(const ProcessId& process) {
  if (!is_visible(process)) return;
  // Of hundreds of ranks each watches all others: what /proc says of this one is not asked again.
  if (process.pid == ::getpid()) {
    was_gone_ = start_time_of(process.pid) != process.start_time;
    return;
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd_ && (errno == EMFILE || errno == ENFILE)) {
    throw SystemError("cannot watch process " + std::to_string(process.pid), errno);
  }
  if (!pidfd_) {
    was_gone_ = errno == ESRCH;
    return;
  }
  const auto start_time = start_time_of(process.pid);  // 0 if that cannot be read
  was_gone_ = start_time != 0 && start_time != process.start_time;
}

bool ProcessWatch::ended() const {
  if (was_gone_) return true;
  if (!pidfd_) return false;
  pollfd query{pidfd_.get(), POLLIN, 0};
  return ::poll(&query, 1, 0) > 0;
}

}  // namespace tutti::shm
