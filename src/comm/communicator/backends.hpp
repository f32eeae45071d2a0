// The one table of backends: which transport serves which communicator.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator/launcher.hpp"
#include "tutti/transport.hpp"
#include "tutti/unique_id.hpp"

namespace tutti {

/** The transport among all ranks of a launch. See Communicator(options). */
std::unique_ptr<Transport> connect_launch(const Launch& launch, std::chrono::milliseconds timeout);
/** The transport among the holders of a ticket on this host. */
std::unique_ptr<Transport> connect_local(int local_rank, int world_size, const UniqueId& id,
                                         std::chrono::milliseconds timeout);

/** The transport between the GPUs of the ranks of `cpu_transport`, which outlives it. See
 * nccl::connect. */
std::unique_ptr<DeviceTransport> connect_gpus(Transport* cpu_transport, Device device);

}  // namespace tutti
