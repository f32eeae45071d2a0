// How the ranks of an MPI communicator are connected.
#pragma once

#include <chrono>
#include <memory>

#include "comm/mpi/session.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/** The transport among all ranks of a session: shared memory where they share a host, else
 * HierarchicalTransport. Collective: each of its steps blocks until all ranks of it have come, at
 * most for `timeout`. Throws PeerLost, InvalidArgument where variables differ
 * (require_agreement()), and SystemError. */
std::unique_ptr<Transport> connect_session(const std::shared_ptr<mpi::Session>& session,
                                           std::chrono::milliseconds timeout);

}  // namespace tutti
