// How the ranks of different hosts connect, and what TCP tells of the other end.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/failures/heartbeats.hpp"
#include "comm/layout.hpp"
#include "comm/mpi/sockets/streams.hpp"

namespace tutti::mpi {

class Channel;
class Whole;

/** What the leaders of up to Wire::kMostWithoutAhead hosts find in common: the same at all ranks.
 * Plain bytes. */
struct LeadersConnections {
  /** Each has connections for messages of collectives with all others. */
  bool all_have_streams = false;
  /** And, of more than two hosts, each that of the next one is fast: see WireSpeed. */
  bool are_fast = false;
};

/** What connect_hosts() gives a rank; no streams if it is no leader, or has none. */
struct HostConnections {
  std::unique_ptr<Heartbeats> heartbeats;
  std::unique_ptr<Streams> streams;
  LeadersConnections leaders{};
  std::vector<int> reached{};  ///< by who is no leader: the hosts to which its host has a line
};

/**
 * A TCP connection with keepalive from the leader of a host to those of connected_hosts(), and
 * another one where a host has several ranks, for their lines: those hold copies of it, so it ends
 * with the last of them. A collective, of which each rank gets what is its own. Each pair tries all
 * addresses that the other has, and shows by a random number, which came with these, that it is not
 * a stranger. What they tell each other goes over connections of the `whole` of which this is a
 * part, if there are some, and over MPI otherwise (see Words). Who cannot be reached within two
 * seconds or a quarter of a deadline, behind a firewall for example, goes without, and a log line
 * says so; where nobody listened at any address, the session does not try that pair again. Nor is
 * one tried of which either has no address. PeerLost as by any wait of `channel`.
 *
 * Leaders also get connections for messages of collectives, unless MPI is to carry these from or to
 * one of their hosts (reason_for_mpi()). Those of three to Wire::kMostWithoutAhead hosts test how
 * fast the wire is (test_wire()), unless the whole knows.
 */
HostConnections connect_hosts(Channel& channel, const Layout& layout, Whole* whole);

/** After that, by all who lead no host, where there are lanes: connections for
 * messages of collectives with the ranks of this one's place on the hosts that its host has
 * `reached`, in the same way; null if there are none. */
std::unique_ptr<Streams> connect_lane(Channel& channel, const Layout& layout,
                                      std::span<const int> reached, Whole* whole);

}  // namespace tutti::mpi
