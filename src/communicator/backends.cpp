// Connects the ranks through what serves them: shared memory, MPI and shared memory, or NCCL.
#include "communicator/backends.hpp"

#include <numeric>
#include <vector>

#include "communicator/hierarchical.hpp"
#include "communicator/mpi/session.hpp"
#include "communicator/nccl/connect.hpp"
#include "communicator/shm/transport.hpp"

namespace tutti {

std::unique_ptr<Transport> connect_mpi_world(std::chrono::milliseconds timeout) {
  return connect_session(mpi::Session::world(timeout), timeout);
}

std::unique_ptr<Transport> connect_local(int local_rank, int world_size, const UniqueId& id,
                                         std::chrono::milliseconds timeout) {
  std::vector<int> names(static_cast<std::size_t>(world_size));
  std::iota(names.begin(), names.end(), 0);
  return std::make_unique<shm::ShmTransport>(id, local_rank, std::move(names), timeout);
}

std::unique_ptr<DeviceTransport> connect_gpus(Transport* host, Device device) {
  return nccl::connect(host, device);
}

}  // namespace tutti
