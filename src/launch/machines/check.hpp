// What is wrong with a machine is found out before ranks are started there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/machines/hosts.hpp"

namespace tutti::launch {

/** What a machine has answered. */
struct CheckedMachine {
  std::vector<int> ports;      ///< that were free there
  std::size_t processors = 1;  ///< that ranks may use there
  double clock_ahead = 0;  ///< seconds that its clock is ahead of ours; within the answer's time 0
};

/**
 * Asks all machines at once: whether this program, of this version, and the same Open MPI are
 * there, the folder and the files that are to be run, and room in /dev/shm for its ranks. In a job
 * of a resource manager mpiexec carries the question, as it will start the ranks; otherwise ssh
 * does (or what OMPI_MCA_plm_rsh_agent names), without passwords. Throws InvalidArgument with a
 * line for each machine on which something is wrong, or that has two names. Who does not answer is
 * named after ten seconds; where mpiexec has not reached all, after ten more for those that have
 * not answered, each alone.
 */
std::map<std::string, CheckedMachine> check_machines(const std::vector<Host>& hosts,
                                                     const std::vector<std::string>& files);

/** The words as a shell reads them. */
std::string shell_text(const std::vector<std::string>& words);

}  // namespace tutti::launch
