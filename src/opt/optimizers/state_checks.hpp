// Checks of what a state holds, for whoever loads it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/optimizer.hpp"

namespace tutti {

/** Throws InvalidArgument if `state` has anything that `owner` does not know. */
void refuse_unknown(const std::string& owner, const OptimizerState& state,
                    std::initializer_list<std::string_view> numbers,
                    std::initializer_list<std::string_view> arrays);

/** Number `name`, which counts something; nothing if it is not there. Throws InvalidArgument unless
 * it is a whole number from 0 to 2^53. */
std::optional<std::int64_t> count_in(const OptimizerState& state, const std::string& name);

/** The same of one that has to be there. */
std::int64_t needed_count_in(const OptimizerState& state, const std::string& name);

/** Throws InvalidArgument unless array `name` is there if it is `wanted`, as long as the parameter
 * space, and not there otherwise. */
void check_array(const std::string& owner, const OptimizerState& state, const std::string& name,
                 bool wanted, std::int64_t elements);

/** Throws InvalidArgument if an element of array `name`, which is there, is negative. */
void check_not_negative(const OptimizerState& state, const std::string& name);

}  // namespace tutti
