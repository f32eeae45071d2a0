// Messages on stderr, as TUTTI_LOG asks for: error, warn (the default), info or debug; or to the
// caller's sink.
#pragma once

#include <string_view>

#include "tutti/log.hpp"

namespace tutti {

/** Whether messages of this level are wanted. Throws InvalidArgument for a wrong TUTTI_LOG. */
bool log_enabled(LogLevel level);
/** Writes one line, on stderr `tutti <level>: <message>`, in one piece. Never throws. */
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace tutti
