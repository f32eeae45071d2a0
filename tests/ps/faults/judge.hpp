// Runs a trial and says what was wrong with it.
#pragma once

#include <string>

#include "ps/faults/trial.hpp"

namespace tutti::ps::faults {

struct Verdict {
  std::string wrong;           ///< empty: nothing
  std::string late;            ///< right, but not in time, which a busy machine can do
  bool rounds_differ = false;  ///< servers say that of their last checkpoint, in sync mode
  double longest_step = 0;     ///< of survivors that were not to wait, in seconds
  double told_after = 0;       ///< seconds until the last of those who had to know knew
};

Verdict run(const Trial& trial);

}  // namespace tutti::ps::faults
