// What all ranks of a communicator must have set alike.
#pragma once

#include "tutti/transport.hpp"

namespace tutti {

/**
 * Compares the environment variables that must be the same on all ranks. Collective over
 * `transport`, whose first call it is. Throws InvalidArgument on every rank, with the variable, its
 * values and the ranks that have them.
 */
void require_agreement(Transport& transport);

}  // namespace tutti
