// Messages on stderr, as TUTTI_LOG asks for: error, warn (the default), info or debug.
#pragma once

#include <string_view>

namespace tutti {

enum class LogLevel { error, warn, info, debug };

/** Whether messages of this level are wanted. Throws InvalidArgument for a wrong TUTTI_LOG. */
bool log_enabled(LogLevel level);
/** Writes one line, `tutti <level>: <message>`, in one piece. Never throws. */
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace tutti
