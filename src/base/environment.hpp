// Environment variables.
#pragma once

#include <optional>
#include <string>

namespace tutti {

/** The value of a variable; nothing if it is unset or empty. */
std::optional<std::string> environment(const char* name);

}  // namespace tutti
