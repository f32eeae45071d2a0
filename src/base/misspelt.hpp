// Finds names that are nearly those of tutti's variables of the environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/**
 * Which of tutti's variables is meant by `name`, if it is none of them, but at most two letters
 * away from one, of short ones one, or one and more words: TUTTI_TIMOUT, TUTTI_LOG_LEVEL. Others
 * may be the user's.
 */
std::optional<std::string_view> meant_variable(std::string_view name);

/** What to say of the names in `entries`, NAME=value each and a null at the end, that are
 * misspelt; empty if none is. */
std::string about_misspelt_variables(const char* const* entries);

/** Logs that of this process' environment as a warning, if the process is its host's first one as
 * it asks for the first time. */
void warn_of_misspelt_variables(bool is_first_of_host);

}  // namespace tutti
