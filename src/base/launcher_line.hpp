// What a rank says to the launcher that has started it.
#pragma once

#include <string_view>

namespace tutti {

/** Of a server that ends when no worker is left: `tutti run` does not end it before. */
inline constexpr std::string_view kEndsByItself = "ends by itself";

/** Of a rank that an exception ends: others may have heard of it, and end for it, before it has
 * ended. `tutti run` waits for it then, and names it first. */
inline constexpr std::string_view kIsFailing = "is failing";

/** Of a rank that the loss of another one ends, or a mismatch: `tutti run` gives others a moment to
 * fail otherwise, and names these first. */
inline constexpr std::string_view kEndsForAnother = "ends for another";

/** Writes a line to the pipe that `tutti run` reads (TUTTI_PROGRESS_FD), if it has started this
 * process. Never blocks: a full pipe loses the line. */
void tell_launcher(std::string_view line) noexcept;

}  // namespace tutti
