// Writes the log lines.
#include "communicator/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>

#include "communicator/environment.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kNames{"error", "warn", "info", "debug"};

LogLevel wanted_level() {
  const auto text = environment("TUTTI_LOG");
  if (!text) return LogLevel::warn;
  const auto* const name = std::find(kNames.begin(), kNames.end(), *text);
  if (name == kNames.end()) {
    throw InvalidArgument("TUTTI_LOG is '" + *text + "', but must be error, warn, info or debug");
  }
  return static_cast<LogLevel>(name - kNames.begin());
}

}  // namespace

bool log_enabled(LogLevel level) { return level <= wanted_level(); }

void log(LogLevel level, std::string_view message) noexcept {
  try {
    if (!log_enabled(level)) return;
    std::string line = "tutti ";
    line += kNames[static_cast<std::size_t>(level)];
    line += ": ";
    line += message;
    line += '\n';
    // One write: the lines of several ranks do not mix. A log that cannot be written is no error.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::exception&) {  // a wrong TUTTI_LOG, or no memory: the message is lost
  }
}

}  // namespace tutti
