// The processes of this host that mpiexec started along with this one, before MPI can tell of them.
#pragma once

#include <vector>

namespace tutti::mpi {

/** The name of the thread in which a rank initialises MPI. */
inline constexpr const char* kInitialisingThread = "tutti-mpi-init";

struct LocalRanks {
  int come = 0;              ///< how many of this host initialise MPI now, this one included
  std::vector<int> missing;  ///< those that run but do not, or are stopped; in ascending order
};

/**
 * Looks through /proc for the processes of this job, by the job's name and the ranks that Open
 * MPI's mpiexec put into their environments. Where all ranks of the job are on this host, those
 * that have no process any more are missing, too. Nothing is missing if this process was not
 * started so.
 */
LocalRanks local_ranks();

}  // namespace tutti::mpi
