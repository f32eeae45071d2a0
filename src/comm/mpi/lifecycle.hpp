// MPI's start and end in this process: who makes them, and how neither waits for ever.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace tutti::mpi {

/** Whether MPI has been initialised, by whomever. */
bool is_initialised();
/** Whether it has been finalised, by whomever. */
bool is_finalised();

/**
 * Initialises MPI unless somebody has; it is then finalised when the process ends, unless a rank
 * was lost. MPI_Init waits for all ranks and cannot be polled, so it runs on a thread of its own,
 * which is left alone when `timeout` has passed.
 *
 * Errors: InvalidArgument if MPI is finalised already, in a forked child of a process that uses it,
 * or where interfaces are named that are not there (meeting/interface.hpp); PeerLost naming the
 * ranks of this host that have not come, CommunicationError if none is seen. A later call waits on.
 */
void initialise(std::chrono::milliseconds timeout);

/** Throws InvalidArgument in a forked child of a process that has used MPI: both would speak over
 * the same connections. */
void refuse_in_forked_child();

/**
 * For MPI that the program itself finalises: after mark_lost(), MPI_Finalize first waits for the
 * ranks in question to come to it as well, and ends the process with status 1 if they have not
 * after some seconds: mpiexec then ends the job. Called by a thread that may call MPI, before
 * anything can be lost.
 */
void guard_finalisation();

/** One of `ranks` (of MPI_COMM_WORLD) was lost to the others: tutti does not finalise MPI, and a
 * program that does is guarded. */
void mark_lost(std::span<const int> ranks) noexcept;

/** The largest tag that MPI takes: of the roll call of ranks that meet. */
int roll_call_tag();
/** Sends an empty message to all other ranks of `comm`, and receives theirs until those of all in
 * `awaited` have come, or `timeout` has passed: those of whom none has. `meanwhile` may find others
 * present by other means. Errors of MPI are thrown, whatever error handler `comm` has. */
std::vector<int> call_roll(MPI_Comm comm, int tag, std::span<const int> awaited,
                           std::chrono::milliseconds timeout,
                           const std::function<void(std::set<int>& absent)>& meanwhile = {});

/** Between hosts Open MPI writes to connections whose other end may be gone, and the system's
 * answer to that would end this process: SIGPIPE is ignored from now on, unless the program handles
 * it. */
void survive_lost_connections() noexcept;

/** Keeps memory for ever, because MPI may still read or write it. */
void leave_to_mpi(std::shared_ptr<const void> memory) noexcept;

/** Throws Error with MPI's own text if `code` is not MPI_SUCCESS. */
void check(int code, const char* call);
/** MPI's own text for an error code. */
std::string describe_error(int code);

}  // namespace tutti::mpi
