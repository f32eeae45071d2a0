// Watches processes through pidfds.
#include "comm/shm/process.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** Field 22 of /proc/PID/stat; 0 if the process is gone. */
std::uint64_t start_time_of(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name in parentheses, which may hold anything.
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream rest(line.substr(end_of_name + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) rest >> skipped;
  std::uint64_t start_time = 0;
  rest >> start_time;
  return start_time;
}

}  // namespace

ProcessId ProcessId::self() {
  ProcessId id;
  id.pid = ::getpid();
  id.start_time = start_time_of(id.pid);
  struct stat status {};
  if (::stat("/proc/self/ns/pid", &status) == 0) id.pid_namespace = status.st_ino;
  return id;
}

ProcessWatch::ProcessWatch(const ProcessId& process) {
  const ProcessId self = ProcessId::self();
  if (process == self || process.pid_namespace != self.pid_namespace) return;
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd_ && (errno == EMFILE || errno == ENFILE)) {
    throw SystemError("cannot watch process " + std::to_string(process.pid), errno);
  }
  was_gone_ = pidfd_ ? start_time_of(process.pid) != process.start_time : errno == ESRCH;
}

bool ProcessWatch::ended() const {
  if (was_gone_) return true;
  if (!pidfd_) return false;
  pollfd query{pidfd_.get(), POLLIN, 0};
  return ::poll(&query, 1, 0) > 0;
}

}  // namespace tutti::shm
