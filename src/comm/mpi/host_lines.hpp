// The lines of a host, which its leader connects: how its other ranks come to hold them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/layout.hpp"
#include "comm/mpi/connect_hosts.hpp"
#include "comm/mpi/meeting/meeting.hpp"
#include "comm/mpi/sockets/lent_sockets.hpp"

namespace tutti::mpi {

class Channel;

// By the leader, for its `neighbours`, the other ranks of its host, one after the other:

/** Tells where `lender` lends the lines. */
void offer_lines(Channel& channel, std::span<const int> neighbours, const SocketLender& lender);
/** Gives them copies of the hosts' lines among `peers`; closes these unless all have some. The
 * hosts to which they lead, in the order in which they were lent. */
std::vector<std::int32_t> lend_lines(const Channel& channel, std::vector<Peer>& peers,
                                     const SocketLender& lender);
/** Tells which of the lines to `lent` hosts both ends keep, and what HostConnections says. */
void tell_kept(Channel& channel, std::span<const int> neighbours, const std::vector<Peer>& peers,
               std::span<const std::int32_t> lent, const LeadersConnections& leaders);

/** By a neighbour, all the while: those lines that are kept. Others would look as if all ranks of a
 * host had left, once the last copy has gone. */
HostConnections borrow_lines(Channel& channel, const Layout& layout);

}  // namespace tutti::mpi
