// How the terms of a worker and a server are told and compared.
#pragma once

#include <string>
#include <string_view>

#include "ps/link/meeting.hpp"

namespace tutti::ps {

/** One text of all lines, for the way. */
std::string join_terms(const Terms& terms);
Terms split_terms(std::string_view text);

/** The lines in which two sides differ, each with the name of its side; empty if there are none. */
std::string compare_terms(const std::string& server, const Terms& servers,
                          const std::string& worker, const Terms& workers);

}  // namespace tutti::ps
