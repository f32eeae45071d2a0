// `tutti run`: options, plan, supervisor, report, one after the other.
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

/** Runs a job as its arguments say, and returns the command's exit code. Throws Error for what is
 * wrong before anything has started. */
int run(const std::vector<std::string>& arguments);

}  // namespace tutti::launch
