// `tutti rank -- PROGRAM`: the process under which a rank runs.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::launch {

/** What the wrapper of a rank is told on its command line. */
struct WrapperOptions {
  int control = -1;       ///< the socket to the launcher; -1: there is none
  int output = -1;        ///< the one for what is to be shown; -1: the rank has our stdout, stderr
  bool show_out = false;  ///< whether the rank's stdout goes to the launcher
  bool show_err = false;  ///< and its stderr
  std::filesystem::path log;         ///< where both go as well; empty: nowhere
  std::vector<int> cpus;             ///< where the rank may run; empty: anywhere
  std::vector<std::string> command;  ///< its program, as execve() takes it, and the arguments

  /** As words of a command line, for parse_wrapper(). */
  std::vector<std::string> arguments() const;
};

/** Reads what follows `tutti rank`. Throws InvalidArgument. */
WrapperOptions parse_wrapper(const std::vector<std::string>& arguments);

/**
 * Runs the program in a process that `parent` has started and waits until it and all processes that
 * descend from it have ended; those that outlive it are ended. Keeps its log, sends the launcher
 * what is to be shown and how it ended, and passes signals on. When the launcher, or whoever
 * started this process, ends, the rank gets SIGTERM, and after two seconds SIGKILL; when this
 * process is killed the rank is, too. Returns the exit code of the rank as a shell has it. Throws
 * SystemError if it cannot be started.
 */
int run_wrapper(const WrapperOptions& options, pid_t parent);

}  // namespace tutti::launch
