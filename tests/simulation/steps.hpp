// The collectives of a trial, with data whose results are known.
#pragma once

#include <cstddef>

#include "comm/hosts/group.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {

/** Makes the call of a step, the `number`th of its plan. Throws std::logic_error if the result is
 * wrong. */
void run_step(HostGroup& group, const Step& step, std::size_t number);

}  // namespace tutti::test::simulated
