// Communicators over a caller's MPI_Comm. The only public header that includes mpi.h.
#pragma once

#include <mpi.h>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * A communicator over the ranks of `comm`. Collective over them. Blocks until all of them have
 * come; PeerLost naming those that have not at the deadline. `comm` is duplicated, so it and its
 * error handler stay the caller's and may be freed.
 *
 * Initialise MPI before, with MPI_THREAD_MULTIPLE (as mpi4py does). With less, ranks on several
 * hosts must call tutti from MPI's thread, and operations on a Stream::worker() run on the calling
 * thread, so that DistOpt overlaps nothing; Communicator::describe() says so.
 *
 * Errors: InvalidArgument if MPI is not initialised or `comm` is MPI_COMM_NULL.
 */
Communicator from_mpi(MPI_Comm comm, const CommOptions& options = {});

}  // namespace tutti
