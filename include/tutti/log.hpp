// Where the library's log lines go.
#pragma once

#include <functional>
#include <string_view>

namespace tutti {

enum class LogLevel { error, warn, info, debug };

/** What takes log lines instead of stderr. Both are called on any thread, at any moment, several
 * at a time; they must not block, throw, or call tutti. */
struct LogSink {
  std::function<bool(LogLevel)> wants;  ///< instead of what TUTTI_LOG says
  std::function<void(LogLevel, std::string_view message)> write;
};

/** Hands all further log lines of this process to `sink`. One without both functions gives them
 * back to stderr, as TUTTI_LOG asks for. Any thread may call it. It does not wait: lines under way
 * on other threads may still go to the sink before, which lives until they are written. For
 * languages that have loggers of their own. */
void set_log_sink(LogSink sink);

}  // namespace tutti
