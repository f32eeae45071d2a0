// Forks ranks and waits for them.
#include "launch.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tutti/launch.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{10};

/** Keeps SIGCHLD pending for sigtimedwait(). */
class BlockedSigchld {
 public:
  BlockedSigchld() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  BlockedSigchld(const BlockedSigchld&) = delete;
  BlockedSigchld& operator=(const BlockedSigchld&) = delete;
  ~BlockedSigchld() { restore(); }

  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  void wait() const {
    // The time limit covers a signal that came before two children had ended.
    const timespec limit{.tv_sec = 0, .tv_nsec = 200'000'000};
    sigtimedwait(&set_, nullptr, &limit);
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

[[noreturn]] void run_child(int rank, pid_t parent, const std::function<int(int)>& rank_main) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl() took effect.
  const int status = getppid() == parent ? rank_main(rank) : 1;
  std::fflush(nullptr);
  _exit(status);
}

/** Whether the rank ended well; says so if a signal ended it. */
bool ended_well(int rank, int status) {
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "mnist_dist: rank %d was killed by signal %d (%s)\n", rank,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int launch_ranks(int ranks, const std::function<int(int rank)>& rank_main) {
  const BlockedSigchld sigchld;
  const pid_t parent = getpid();
  std::fflush(nullptr);  // or the children would write it a second time

  std::vector<pid_t> children;
  bool failed = false;
  for (int rank = 0; rank < ranks && !failed; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      sigchld.restore();
      run_child(rank, parent, rank_main);
    }
    if (child < 0) {
      std::fprintf(stderr, "mnist_dist: cannot fork rank %d: %s\n", rank, std::strerror(errno));
      failed = true;
    } else {
      children.push_back(child);
    }
  }

  Clock::time_point deadline = failed ? Clock::now() : Clock::time_point::max();
  std::size_t running = children.size();
  while (running > 0) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      const auto child = std::find(children.begin(), children.end(), ended);
      if (child == children.end()) continue;
      if (!ended_well(static_cast<int>(child - children.begin()), status) && !failed) {
        failed = true;
        deadline = Clock::now() + kGrace;
      }
      *child = 0;
      --running;
    } else if (Clock::now() >= deadline) {
      for (const pid_t child : children) {
        if (child > 0) kill(child, SIGKILL);
      }
      deadline = Clock::time_point::max();
    } else {
      sigchld.wait();
    }
  }
  return failed ? 1 : 0;
}

bool stdout_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (tutti::launched_by() != "mpiexec") return true;
  // Open MPI gives each rank a pseudo-terminal and copies what it reads there to its own stdout.
  const std::string path = "/proc/" + std::to_string(getppid()) + "/fd/1";
  const int descriptor = open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool terminal = isatty(descriptor) != 0;
  close(descriptor);
  return terminal;
}

}  // namespace mnist
