// The processes of this host that mpiexec started along with this one, before MPI can tell of them.
#pragma once

#include <vector>

namespace tutti::mpi {

/** The name of the thread in which a rank initialises MPI. */
inline constexpr const char* kInitialisingThread = "tutti-mpi-init";

/** The ranks of this job on this host, as far as they are seen. */
struct LocalRanks {
  int come = 0;              ///< how many of this host initialise MPI now, this one included
  std::vector<int> missing;  ///< those that run but do not, or are stopped; in ascending order
};

/**
 * Looks through /proc for the processes of this job, by the job's name and the ranks that Open
 * MPI's mpiexec put into their environments. Nobody is missing who cannot be seen: the processes of
 * other PID namespaces, or all where /proc is not to be read. Takes it that tutti initialises MPI
 * on all ranks.
 */
LocalRanks local_ranks();

}  // namespace tutti::mpi
