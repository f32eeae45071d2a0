// What is said at the end of a job that was not done.
#pragma once

#include <string>

#include "launch/plan.hpp"
#include "launch/supervisor.hpp"

namespace tutti::launch {

/**
 * Which rank failed first, where, when and how, the last lines of its output, and what became of
 * the others. Empty for a job that was done.
 */
std::string report_text(const Plan& plan, const Outcome& outcome);

}  // namespace tutti::launch
