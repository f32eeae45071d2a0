// Runs one trial and finds out what was wrong with it.
#pragma once

#include <string>
#include <vector>

#include "rig/job.hpp"
#include "rig/trial.hpp"

namespace tutti::test {

struct Verdict {
  std::vector<std::string> complaints;  ///< none: all was well
  /** Whether all complaints are about time, which a machine so busy may be to blame for. */
  bool is_doubtful = false;
  bool mpiexec_hung = false;  ///< though all ranks had ended
  std::int64_t results = 0;   ///< that were compared
  double longest_wait = 0;    ///< of a survivor after the fault, in seconds
  std::string account;        ///< what became of each rank
  std::string output;         ///< of mpiexec
};

/** Runs the trial in this process, which starts no other trial meanwhile. */
Verdict run(const Trial& trial, const Program& program);

}  // namespace tutti::test
