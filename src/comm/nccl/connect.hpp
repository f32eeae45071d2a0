// How GPUs are connected: through NCCL, if the build and the machine have it.
#pragma once

#include <memory>

#include "tutti/transport.hpp"

namespace tutti::nccl {

/**
 * Collective over the ranks of `cpu_transport`, over which they meet and which outlives the result:
 * the transport among their GPUs, this rank's being `device`. Throws BackendUnavailable, on all
 * ranks alike, where NCCL is missing on some, where their versions differ, where a rank cannot use
 * its GPU, and where two ranks of one process share one; otherwise as collectives do.
 */
std::unique_ptr<DeviceTransport> connect(Transport* cpu_transport, Device device);

}  // namespace tutti::nccl
