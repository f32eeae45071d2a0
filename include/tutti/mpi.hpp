// Communicators over a caller's MPI_Comm. The only public header that includes mpi.h.
#pragma once

#include <mpi.h>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * A communicator over the ranks of `comm`. Collective over them. `comm` is duplicated, so it and
 * its error handler stay the caller's and may be freed. MPI must be initialised.
 * Errors: InvalidArgument if MPI is not initialised or `comm` is MPI_COMM_NULL.
 */
Communicator from_mpi(MPI_Comm comm, const CommOptions& options = {});

}  // namespace tutti
