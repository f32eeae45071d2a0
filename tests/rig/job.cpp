// Forks, executes mpiexec, and kills what is left.
#include "rig/job.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "rig/rank.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

bool write_file(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

/** Mounts another /dev/shm, seen by this process and its children alone. */
bool hide_dev_shm() {
  const std::string uid = std::to_string(::getuid());
  const std::string gid = std::to_string(::getgid());
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
    if (!write_file("/proc/self/setgroups", "deny") ||
        !write_file("/proc/self/uid_map", uid + " " + uid + " 1") ||
        !write_file("/proc/self/gid_map", gid + " " + gid + " 1")) {
      return false;
    }
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0;
}

std::vector<pid_t> children(pid_t pid = ::getpid()) {
  const std::string number = std::to_string(pid);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  return {std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
}

/** A process in words: "123 (name) S". Empty if there is none. */
std::string describe(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos ? "" : stat.substr(0, end + 3);
}

/** The process and its descendants. */
std::string family(pid_t pid) {
  std::string text = describe(pid) + " ";
  for (const pid_t child : children(pid)) text += family(child);
  return text;
}

std::vector<std::string> mpiexec_command(const Trial& trial, const Program& program,
                                         const Sandbox& sandbox) {
  std::vector<std::string> command{program.mpiexec, "--oversubscribe", "--bind-to", "none"};
  if (trial.recovery) command.emplace_back("--enable-recovery");
  command.insert(
      command.end(),
      {"-n", std::to_string(trial.ranks), program.path, "--seed", std::to_string(trial.seed),
       "--trial", std::to_string(trial.number), "--record", sandbox.file(kRecordFile)});
  return command;
}

}  // namespace

Sandbox::Sandbox() { has_own_shm_ = hide_dev_shm(); }

Job::Job(const Trial& trial, const Program& program, const Sandbox& sandbox, Record& record) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (trial.start == Start::fork) {
    fork_ranks(trial, record);
  } else {
    start_mpiexec(trial, program, sandbox);
  }
}

Job::~Job() {
  for (auto left = children(); !left.empty(); left = children()) {
    for (const pid_t pid : left) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
}

void Job::fork_ranks(const Trial& trial, Record& record) {
  const UniqueId ticket = UniqueId::create();
  const pid_t parent = ::getpid();
  for (int rank = 0; rank < trial.ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw SystemError("cannot fork", errno);
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      int code = 1;
      if (::getppid() == parent) code = live(trial, rank, record, ticket);
      std::_Exit(code);  // the parent's objects are not the child's to destroy
    }
    started_.push_back(pid);
    ++alive_;
  }
}

void Job::start_mpiexec(const Trial& trial, const Program& program, const Sandbox& sandbox) {
  std::vector<std::string> command = mpiexec_command(trial, program, sandbox);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw SystemError("cannot fork", errno);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int output =
        ::open(sandbox.file(kOutputFile).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::setenv("TMPDIR", sandbox.directory().c_str(), 1);
    // Hosts that are pretended do not read each other's memory.
    ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    ::execvp(arguments[0], arguments.data());
    std::perror(arguments[0]);
    std::_Exit(127);
  }
  started_.push_back(pid);
  ++alive_;
}

void Job::look() {
  for (std::size_t i = 0; i < started_.size(); ++i) {
    int status = 0;
    if (started_[i] == 0 || ::waitpid(started_[i], &status, WNOHANG) != started_[i]) continue;
    started_[i] = 0;
    --alive_;
    if (WIFSIGNALED(status)) signals_[static_cast<int>(i)] = WTERMSIG(status);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (status_ == 0) status_ = code;
  }
  // Processes whose parents have ended before.
  if (is_over()) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

bool Job::has_living_grandchildren() {
  for (const pid_t pid : children()) {
    for (const pid_t child : children(pid)) {
      const std::string text = describe(child);
      if (!text.empty() && !text.ends_with('Z')) return true;
    }
  }
  return false;
}

std::string Job::alive() {
  std::string text;
  for (const pid_t pid : children()) text += family(pid);
  return text;
}

}  // namespace tutti::test
