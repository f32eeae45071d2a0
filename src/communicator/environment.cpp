// Reads and checks the environment variables.
#include "communicator/environment.hpp"

#include <cmath>
#include <cstdlib>

#include "tutti/error.hpp"

namespace tutti {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::chrono::milliseconds timeout_or_default(std::optional<std::chrono::milliseconds> option) {
  if (option) {
    if (option->count() <= 0) {
      throw InvalidArgument("CommOptions::timeout is " + std::to_string(option->count()) +
                            " ms, but must be positive");
    }
    return *option;
  }
  const auto text = environment("TUTTI_TIMEOUT");
  if (!text) return std::chrono::seconds(300);
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  constexpr double kLongest = 1e9;  // beyond 30 years the arithmetic of clocks overflows
  if (*end != '\0' || !(seconds >= 0.001) || seconds > kLongest) {
    throw InvalidArgument("TUTTI_TIMEOUT is '" + *text +
                          "', but must be a number of seconds from 0.001 to 1e9");
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000.0));
}

}  // namespace tutti
