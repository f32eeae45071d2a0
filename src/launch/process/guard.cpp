// Guards a wrapper: adopts what it leaves.
#include "launch/process/guard.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/deadline.hpp"
#include "launch/process/poll_set.hpp"
#include "launch/process/process.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

constexpr std::chrono::seconds kEndLimit{5};  // of what the kernel does not end
constexpr std::chrono::milliseconds kEndPause{20};

/** Takes the ends of children; whether `child` is among them. */
bool reap(pid_t child) {
  bool ended = false;
  while (const pid_t one = ::waitpid(-1, nullptr, WNOHANG)) {
    if (one < 0) return true;  // there is none
    ended |= one == child;
  }
  return ended;
}

void wait_for_end(pid_t child, const SignalSet& signals) {
  while (!reap(child)) {
    PollSet sources;
    sources.add(signals.descriptor(), POLLIN);
    sources.wait(-1);
    while (const int signal = signals.next()) {
      if (signal != SIGCHLD) ::kill(child, signal);
    }
  }
}

void end_what_is_left(pid_t child) {
  ::prctl(PR_SET_PDEATHSIG, 0);  // who has started it may end as soon as the ranks have
  Deadline end(kEndLimit);
  while (signal_descendants(SIGKILL) > 0 && !end.expired()) {
    std::this_thread::sleep_for(kEndPause);
    reap(child);
  }
}

}  // namespace

std::optional<pid_t> go_on_guarded() {
  const pid_t parent = ::getppid();
  const pid_t guard = ::getpid();
  adopt_orphans();
  const pid_t child = ::fork();
  if (child < 0) throw SystemError("cannot start the guard of a rank", errno);
  if (child == 0) return guard;
  // The child sees that this process is gone, and ends its rank.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return std::nullopt;
  const SignalSet signals({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT});
  wait_for_end(child, signals);
  end_what_is_left(child);
  return std::nullopt;
}

}  // namespace tutti::launch
