// Connects the ranks through what serves them: shared memory, MPI and shared memory, or NCCL.
#include "comm/communicator/backends.hpp"

#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/finally.hpp"
#include "comm/agreement.hpp"
#include "comm/derived_ticket.hpp"
#include "comm/hosts/connect.hpp"
#include "comm/mpi/session.hpp"
#include "comm/nccl/connect.hpp"
#include "comm/shm/group/rendezvous.hpp"
#include "comm/shm/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

/** How many communicators this process has made, or is making, as a rank that was launched. */
std::atomic<std::uint64_t>& communicators_of_this_process() {
  static std::atomic<std::uint64_t> count = 0;
  return count;
}

std::unique_ptr<Transport> connect_mpi_world(const Launch& launch,
                                             std::chrono::milliseconds timeout) {
  const auto session = mpi::Session::world(timeout);
  check_mpi_world(launch, session->rank(), session->size());
  return connect_session(session, timeout);
}

}  // namespace

std::unique_ptr<Transport> connect_launch(const Launch& launch, std::chrono::milliseconds timeout) {
  if (!launch.ticket) return connect_mpi_world(launch, timeout);
  // A ticket admits once: the n-th communicator of each rank is made with the n-th ticket.
  std::atomic<std::uint64_t>& count = communicators_of_this_process();
  const std::uint64_t number = count++;
  const UniqueId id = derived_ticket(*launch.ticket, number);
  const Finally give_back([&] {  // unless it is used: the next attempt is for the same communicator
    std::uint64_t after = number + 1;
    if (!shm::has_met(id, launch.rank)) count.compare_exchange_strong(after, number);
  });
  try {
    return connect_local(launch.rank, launch.world_size, id, timeout);
  } catch (const InvalidArgument& error) {
    if (launch.ticket_source.empty() || shm::has_met(id, launch.rank)) throw;
    throw InvalidArgument(std::string(error.what()) + " (" + launch.said +
                          "; the ticket is made of " + launch.ticket_source +
                          ": an earlier job with the same may still be running)");
  }
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
