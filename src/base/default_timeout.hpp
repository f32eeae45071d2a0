// TUTTI_TIMEOUT: how long ranks wait for each other where their program does not say it.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

namespace tutti {

/** Where the variable is not set. */
inline constexpr std::chrono::seconds kDefaultTimeout{300};

/** The longest that a timeout may be; beyond 30 years the arithmetic of clocks overflows. */
inline constexpr std::chrono::duration<double> kLongestTimeout{1e9};

/** The value of the variable, in seconds; nothing if it cannot be one. */
inline std::optional<std::chrono::milliseconds> parse_timeout(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds >= 0.001) || seconds > kLongestTimeout.count()) return std::nullopt;
  return std::chrono::milliseconds(std::llround(seconds * 1000.0));
}

}  // namespace tutti
