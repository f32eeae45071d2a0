// What a communicator takes from its options and from the environment.
#pragma once

#include <chrono>
#include <optional>

#include "tutti/dtype.hpp"

namespace tutti {

/**
 * The time limit of a communicator that is about to be made: `option`, else TUTTI_TIMEOUT (seconds,
 * fractions allowed), else 300 s. Throws InvalidArgument naming the source if it is not positive
 * and finite, or naming another variable that is wrong and would be read later.
 */
std::chrono::milliseconds checked_timeout(std::optional<std::chrono::milliseconds> option);

/**
 * Where a rank computes, of `gpus` GPUs: as TUTTI_DEVICE says (`cpu` or a number), else by its
 * local rank. Throws InvalidArgument for anything else, and for a number that is not there.
 */
Device choose_device(int local_rank, int gpus);

}  // namespace tutti
