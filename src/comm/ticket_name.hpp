// Names for what belongs to a ticket: a segment, a socket, an allocation.
#pragma once

#include <string>
#include <string_view>

#include "tutti/unique_id.hpp"

namespace tutti {

/**
 * "tutti-" and 16 hexadecimal digits: one name for each ticket and purpose. Every user of the
 * machine sees the names in /dev/shm and of abstract sockets, but only the holders of the ticket
 * can tell them before they are in use, or one from another: they are values of SipHash, whose key
 * is a part of the ticket.
 */
std::string ticket_name(const UniqueId& id, std::string_view purpose);

/** What all names start with. */
inline constexpr std::string_view kNamePrefix = "tutti-";

}  // namespace tutti
