// Processes: how one is started, how it has ended, and who descends from it.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tutti::launch {

/** How a process has ended. */
struct ExitStatus {
  int code = 0;    ///< its exit code, if no signal ended it
  int signal = 0;  ///< the signal that ended it, or 0

  /** Of what waitpid() gives for a process that has ended. */
  static ExitStatus from_wait(int status);

  bool success() const { return code == 0 && signal == 0; }
  /** As a shell has it: 128 + the signal. */
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  /** "exit code 7", or "signal 9 (SIGKILL)". */
  std::string describe() const;
};

/** "SIGTERM"; "signal 77" for one without a name. */
std::string signal_name(int signal);

/** A variable of the environment. */
struct Variable {
  std::string name;
  std::string value;
  bool secret = false;  ///< its value is shown to nobody
};

/** The environment of this process with `changes`, as NAME=value. */
std::vector<std::string> environment_with(const std::vector<Variable>& changes);

/** What a new process is given. */
struct ProcessStart {
  std::vector<std::string> arguments;    ///< the program's path first
  std::vector<std::string> environment;  ///< as NAME=value
  /** Which of our descriptors are its 0, 1 and 2; -1: as ours. */
  int standard[3] = {-1, -1, -1};
  std::vector<int> inherited;  ///< descriptors that it has under the same number
  std::vector<int> cpus;       ///< where it may run; empty: anywhere
  bool own_group = false;      ///< whether it leads a process group
  int death_signal = 0;        ///< what it gets when this process ends, even by SIGKILL
};

/**
 * Starts a process with the signals as they were when the first SignalSet was made. A program that
 * cannot be run says so on its stderr and ends with 127 (not there) or 126, as in a shell. Throws
 * SystemError if there can be no process. The caller has one thread.
 */
pid_t start_process(const ProcessStart& start);

/** How its stderr names a program that cannot be run; the reason follows. */
std::string not_run(const std::string& program);

/**
 * Blocks signals, to read them from a descriptor, and ignores what would end a process for what
 * others do (SIGPIPE, SIGXFSZ). Those that the process was told to ignore stay ignored, as nohup
 * and a shell's & mean it, but for SIGCHLD and SIGTSTP. Processes that it starts have all as they
 * were before.
 */
class SignalSet {
 public:
  explicit SignalSet(const std::vector<int>& signals);
  SignalSet(const SignalSet&) = delete;
  SignalSet& operator=(const SignalSet&) = delete;
  ~SignalSet();

  int descriptor() const { return descriptor_; }
  /** The next signal that has come, or 0. */
  int next() const;

 private:
  int descriptor_;
};

/** What SIGTSTP does to a process that does not catch it: it stops, until SIGCONT comes, unless
 * nobody would send that: PID 1 goes on, and a process group without a shell. */
void stop_this_process();

/** Lets this process have as many descriptors as its user may have. Those that it starts have the
 * limit that was before. */
void raise_descriptor_limit();

/** Makes this process the parent of descendants whose own parents end. */
void adopt_orphans();

/** All processes that descend from this one, but for `except` and who descends from those. */
std::set<pid_t> descendants(const std::set<pid_t>& except = {});
/** Sends all of them a signal, and returns how many there were. */
int signal_descendants(int signal, const std::set<pid_t>& except = {});
/** Stops all of them, and those that they start meanwhile. */
void stop_descendants();

/** This program's path. */
std::string own_path();

/** Opens /dev/null for those of the descriptors 0 to 2 that are closed, so that nothing else gets
 * their numbers. */
void open_standard_descriptors();

}  // namespace tutti::launch
