// Connects the ranks through what serves them: shared memory, MPI and shared memory, or NCCL.
#include "comm/communicator/backends.hpp"

#include <numeric>
#include <vector>

#include "comm/agreement.hpp"
#include "comm/communicator/launcher.hpp"
#include "comm/hosts/connect.hpp"
#include "comm/mpi/session.hpp"
#include "comm/nccl/connect.hpp"
#include "comm/shm/transport.hpp"

namespace tutti {

std::unique_ptr<Transport> connect_mpi_world(std::chrono::milliseconds timeout) {
  const auto session = mpi::Session::world(timeout);
  if (session->size() == 1) refuse_unknown_launcher();
  return connect_session(session, timeout);
}

std::unique_ptr<Transport> connect_local(int local_rank, int world_size, const UniqueId& id,
                                         std::chrono::milliseconds timeout) {
  std::vector<int> names(static_cast<std::size_t>(world_size));
  std::iota(names.begin(), names.end(), 0);
  auto transport = std::make_unique<shm::ShmTransport>(id, local_rank, std::move(names), timeout);
  require_agreement(*transport);
  return transport;
}

std::unique_ptr<DeviceTransport> connect_gpus(Transport* cpu_transport, Device device) {
  return nccl::connect(cpu_transport, device);
}

}  // namespace tutti
