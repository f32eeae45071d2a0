// Communicators over a caller's MPI_Comm.
#include "tutti/mpi.hpp"

#include "comm/communicator/options.hpp"
#include "comm/hosts/connect.hpp"
#include "comm/mpi/session.hpp"

namespace tutti {

Communicator from_mpi(MPI_Comm comm, const CommOptions& options) {
  const auto timeout = checked_timeout(options.timeout);
  return Communicator(connect_session(mpi::Session::over(comm, timeout), timeout));
}

}  // namespace tutti
