// Checks that all optimisers make of their options and of what they are to update.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tutti/optimizer.hpp"

namespace tutti {

/** Throws InvalidArgument unless `value`, of option `name`, is finite and not negative. */
void check_rate(const std::string& name, float value);

/** Throws InvalidArgument unless `elements`, the size of a parameter space, is not negative. */
void check_elements(std::int64_t elements);

/** Throws InvalidArgument, naming the range, for one that leaves the parameter space of `elements`
 * or has no memory. */
void check_ranges(std::span<const ParameterRange> ranges, std::int64_t elements);

}  // namespace tutti
