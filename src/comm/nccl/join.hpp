// How ranks come together in one communicator of NCCL.
#pragma once

#include <memory>

#include "comm/nccl/comm.hpp"
#include "device/cuda.hpp"

namespace tutti::nccl {

/** connect() without CUDA: `gpu` is what tells this rank's GPU from others. */
std::shared_ptr<Comm> join(Transport* cpu_transport, const cuda::Uuid& gpu);

}  // namespace tutti::nccl
