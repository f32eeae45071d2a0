// What all ranks of a communicator must have set alike.
#pragma once

#include <cstdint>

#include "tutti/transport.hpp"

namespace tutti {

/** How many calls on GPUs are compared between the ranks: TUTTI_GPU_CHECK, else 100. Throws
 * InvalidArgument. */
std::int64_t gpu_calls_to_compare();

/**
 * Compares the environment variables that must be the same on all ranks. Collective over
 * `transport`, whose first call it is. Throws InvalidArgument on every rank, with the variable, its
 * values and the ranks that have them.
 */
void require_agreement(Transport& transport);

}  // namespace tutti
