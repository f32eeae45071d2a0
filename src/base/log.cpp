// Writes the log lines.
#include "base/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/environment.hpp"
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

/** The caller's sink, or null. */
struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

SinkHolder& sink_holder() {
  static SinkHolder& never_destroyed = *new SinkHolder;
  return never_destroyed;
}

std::shared_ptr<const LogSink> current_sink() {
  SinkHolder& holder = sink_holder();
  const std::lock_guard lock(holder.mutex);
  return holder.sink;
}

}  // namespace

void set_log_sink(LogSink sink) {
  const bool is_one = sink.wants && sink.write;
  auto shared = is_one ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  SinkHolder& holder = sink_holder();
  const std::lock_guard lock(holder.mutex);
  holder.sink.swap(shared);
}

bool log_enabled(LogLevel level) {
  const LogLevel wanted = wanted_level();  // a wrong TUTTI_LOG is told in any case
  const auto sink = current_sink();
  return sink ? sink->wants(level) : level <= wanted;
}

void log(LogLevel level, std::string_view message) noexcept {
  try {
    if (!log_enabled(level)) return;
    if (const auto sink = current_sink()) {
      sink->write(level, message);
      return;
    }
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
