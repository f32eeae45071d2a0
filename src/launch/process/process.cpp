// Forks, executes, reads /proc.
#include "launch/process/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <thread>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

extern char** environ;

namespace tutti::launch {
namespace {

/** The signals as a process found them that has a SignalSet. */
struct InheritedSignals {
  sigset_t mask{};
  std::array<struct sigaction, 2> actions{};
  bool known = false;
};
constexpr std::array kIgnored{SIGPIPE, SIGXFSZ};

InheritedSignals& inherited_signals() {
  static InheritedSignals signals;
  return signals;
}

void restore_signals() {
  const InheritedSignals& signals = inherited_signals();
  if (!signals.known) return;
  for (std::size_t i = 0; i < kIgnored.size(); ++i) {
    ::sigaction(kIgnored[i], &signals.actions[i], nullptr);
  }
  ::sigprocmask(SIG_SETMASK, &signals.mask, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/** How many descriptors this process might have before raise_descriptor_limit(). */
std::optional<rlimit>& inherited_descriptor_limit() {
  static std::optional<rlimit> limit;
  return limit;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/** In the child, on its stderr. */
void tell_failure(const std::string& what, int error) {
  const std::string text = "tutti: " + what + ": " + std::generic_category().message(error) + "\n";
  [[maybe_unused]] const auto written = ::write(2, text.data(), text.size());
}

/** In the child: becomes the program. Only what cannot be done is told, on stderr. */
[[noreturn]] void become(const ProcessStart& start, pid_t parent) {
  if (start.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, start.death_signal);
    if (::getppid() != parent) ::_exit(1);  // it ended before it was asked for
  }
  if (start.own_group) ::setpgid(0, 0);
  int unbound = 0;  // why
  if (!start.cpus.empty()) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const int cpu : start.cpus) CPU_SET(static_cast<std::size_t>(cpu), &cpus);
    unbound = ::sched_setaffinity(0, sizeof(cpus), &cpus) == 0 ? 0 : errno;
  }
  for (int target = 0; target < 3; ++target) {
    if (start.standard[target] >= 0) ::dup2(start.standard[target], target);
  }
  if (unbound != 0) tell_failure("cannot bind to processors, and runs on any", unbound);
  for (const int descriptor : start.inherited) ::fcntl(descriptor, F_SETFD, 0);
  restore_signals();
  if (const auto& limit = inherited_descriptor_limit()) ::setrlimit(RLIMIT_NOFILE, &*limit);
  const auto arguments = pointers(start.arguments);
  const auto variables = pointers(start.environment);
  ::execve(arguments[0], arguments.data(), variables.data());
  const int error = errno;
  tell_failure(not_run(start.arguments[0]), error);
  ::_exit(error == ENOENT ? 127 : 126);
}

struct ProcessStatus {
  char state;
  pid_t parent;
};

/** That of a process or thread by its folder in /proc; nothing if it has ended. */
std::optional<ProcessStatus> status_of(const std::filesystem::path& folder) {
  // "pid (name) state parent ...", where the name may hold anything.
  std::ifstream file(folder / "stat");
  std::string text;
  if (!std::getline(file, text, '\0')) return std::nullopt;
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return std::nullopt;
  const auto begin = name_end + 4;
  const auto parent =
      parse_number<pid_t>(std::string_view(text).substr(begin, text.find(' ', begin) - begin));
  if (!parent) return std::nullopt;
  return ProcessStatus{.state = text[name_end + 2], .parent = *parent};
}

/** Whether all threads of a process are in one of these states, or it has ended. */
bool is_in_states(pid_t process, std::string_view states) {
  std::error_code gone;  // it may end meanwhile
  std::filesystem::directory_iterator thread("/proc/" + std::to_string(process) + "/task", gone);
  for (; thread != std::filesystem::directory_iterator(); thread.increment(gone)) {
    const auto status = status_of(thread->path());
    if (status && states.find(status->state) == std::string_view::npos) return false;
  }
  return true;
}

}  // namespace

ExitStatus ExitStatus::from_wait(int status) {
  if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

std::string ExitStatus::describe() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return "signal " + std::to_string(signal) + " (" + signal_name(signal) + ")";
}

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

std::vector<std::string> environment_with(const std::vector<Variable>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool changed = std::any_of(changes.begin(), changes.end(),
                                     [&](const Variable& change) { return change.name == name; });
    if (!changed) result.emplace_back(text);
  }
  for (const Variable& change : changes) result.push_back(change.name + "=" + change.value);
  return result;
}

std::string not_run(const std::string& program) { return "cannot run " + program; }

pid_t start_process(const ProcessStart& start) {
  // The child's descriptors 0 to 2 are written one after the other: what they are made of is above.
  for (const int descriptor : start.standard) {
    if (descriptor >= 0 && descriptor < 3) throw Error("a standard descriptor is passed on");
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw SystemError("cannot start " + start.arguments.at(0), errno);
  if (child == 0) become(start, parent);
  if (start.own_group) ::setpgid(child, child);  // whoever is first
  return child;
}

SignalSet::SignalSet(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    // One that is blocked comes to the descriptor also if it is ignored.
    const bool wanted = signal == SIGCHLD || signal == SIGTSTP || !is_ignored(signal);
    if (wanted) sigaddset(&set, signal);
  }
  InheritedSignals& before = inherited_signals();
  ::sigprocmask(SIG_BLOCK, &set, &before.mask);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (std::size_t i = 0; i < kIgnored.size(); ++i) {
    ::sigaction(kIgnored[i], &ignore, &before.actions[i]);
  }
  before.known = true;
  ::signal(SIGCHLD, SIG_DFL);  // if it was ignored, nobody would learn how a child has ended
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw SystemError("cannot make a signalfd", errno);
}

SignalSet::~SignalSet() {
  ::close(descriptor_);
  restore_signals();
}

int SignalSet::next() const {
  signalfd_siginfo info{};
  if (::read(descriptor_, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return 0;
  return static_cast<int>(info.ssi_signo);
}

void stop_this_process() {
  sigset_t stop;
  sigset_t before;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, &before);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlimit most{limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &most) == 0) inherited_descriptor_limit() = limit;
}

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw SystemError("cannot become a subreaper", errno);
  }
}

std::set<pid_t> descendants(const std::set<pid_t>& except) {
  std::multimap<pid_t, pid_t> children;
  std::error_code gone;  // processes end meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const auto process = parse_number<pid_t>(entry.path().filename().native());
    if (!process) continue;
    if (const auto status = status_of(entry.path())) children.emplace(status->parent, *process);
  }
  std::set<pid_t> found;
  std::vector<pid_t> parents{::getpid()};
  while (!parents.empty()) {
    const auto [first, last] = children.equal_range(parents.back());
    parents.pop_back();
    for (auto child = first; child != last; ++child) {
      if (except.contains(child->second)) continue;
      found.insert(child->second);
      parents.push_back(child->second);
    }
  }
  return found;
}

int signal_descendants(int signal, const std::set<pid_t>& except) {
  const std::set<pid_t> processes = descendants(except);
  for (const pid_t process : processes) ::kill(process, signal);
  return static_cast<int>(processes.size());
}

void stop_descendants() {
  Deadline end(std::chrono::seconds(3));           // who starts others for longer is not stopped
  Deadline grace(std::chrono::milliseconds(100));  // longer in state D is a wait in vfork()
  std::set<pid_t> told;
  while (!end.expired()) {
    // One that has not stopped yet may be about to start another, which this look would not see.
    const char* stopped = grace.expired() ? "TtZXD" : "TtZX";
    bool settled = std::ranges::all_of(
        told, [stopped](pid_t process) { return is_in_states(process, stopped); });
    for (const pid_t process : descendants()) {
      if (!told.insert(process).second) continue;
      ::kill(process, SIGSTOP);
      settled = false;
    }
    if (settled) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string own_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error || !std::filesystem::exists(path, error) ? "/proc/self/exe" : path.string();
}

void open_standard_descriptors() {
  for (;;) {
    const int descriptor = ::open("/dev/null", O_RDWR);
    if (descriptor < 0) throw SystemError("cannot open /dev/null", errno);
    if (descriptor > 2) {
      ::close(descriptor);
      return;
    }
  }
}

}  // namespace tutti::launch
