// The environment variables that the communicator reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/dtype.hpp"

namespace tutti {

/** The value of a variable; nothing if it is unset or empty. */
std::optional<std::string> environment(const char* name);

/**
 * The time limit of a communicator that is about to be made: `option`, else TUTTI_TIMEOUT (seconds,
 * fractions allowed), else 300 s. Throws InvalidArgument naming the source if it is not positive
 * and finite, or naming another variable that is wrong and would be read later.
 */
std::chrono::milliseconds checked_timeout(std::optional<std::chrono::milliseconds> option);

/** How many calls on GPUs are compared between the ranks: TUTTI_GPU_CHECK, else 100. Throws
 * InvalidArgument. */
std::int64_t gpu_calls_to_compare();

/**
 * Where a rank computes, of `gpus` GPUs: as TUTTI_DEVICE says (`cpu` or a number), else by its
 * local rank. Throws InvalidArgument for anything else, and for a number that is not there.
 */
Device choose_device(int local_rank, int gpus);

}  // namespace tutti
