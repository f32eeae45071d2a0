// Tickets that processes derive on their own from what all of them know.
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/unique_id.hpp"

namespace tutti {

/** The ticket of a text. Whoever knows the text can tell it. */
UniqueId ticket_of_text(std::string_view text);

/** The ticket with this number of those that derive from `base`. They tell nothing of each other,
 * nor of `base`, to who does not hold that. */
UniqueId derived_ticket(const UniqueId& base, std::uint64_t number);

}  // namespace tutti
