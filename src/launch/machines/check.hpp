// What is wrong with a machine is found out before ranks are started there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/machines/hosts.hpp"

namespace tutti::launch {

/** What a machine has answered. */
struct CheckedMachine {
  std::string name;        ///< as it calls itself
  std::vector<int> ports;  ///< that were free there
  double clock_ahead = 0;  ///< seconds that its clock is ahead of ours; within the answer's time 0
};

/**
 * Asks all machines at once, by ssh (or what OMPI_MCA_plm_rsh_agent names) without passwords:
 * whether this program, of this version, and the same Open MPI are there, the folder and the
 * files that are to be run, and room in /dev/shm for its ranks. Throws InvalidArgument with a line
 * for each machine on which something is wrong, at the latest after ten seconds.
 */
std::map<std::string, CheckedMachine> check_machines(const std::vector<Host>& hosts,
                                                     const std::vector<std::string>& files);

/** `tutti check`: answers that for this machine; the exit code. Throws Error for what is wrong. */
int run_check(const std::vector<std::string>& arguments);

/** This program's path. */
std::string own_path();

/** The words as a shell reads them. */
std::string shell_text(const std::vector<std::string>& words);

/** How a program is run on another machine: what comes before its name. */
std::vector<std::string> remote_shell();

}  // namespace tutti::launch
