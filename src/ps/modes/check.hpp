// Refuses modes that make no sense.
#pragma once

#include "tutti/ps/mode.hpp"

namespace tutti::ps {

/** Throws InvalidArgument naming the mode, its option and the value. */
void check(const Mode& mode);

}  // namespace tutti::ps
