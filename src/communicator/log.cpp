// Writes the log lines.
#include "communicator/log.hpp"

#include <unistd.h>

#include <array>
#include <exception>
#include <string>

#include "communicator/environment.hpp"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kNames{"error", "warn", "info", "debug"};

LogLevel wanted_level() {
  const auto text = environment("TUTTI_LOG");
  for (std::size_t i = 0; text && i < kNames.size(); ++i) {
    if (*text == kNames[i]) return static_cast<LogLevel>(i);
  }
  return LogLevel::warn;
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
  } catch (const std::exception&) {  // out of memory: the message is lost
  }
}

}  // namespace tutti
