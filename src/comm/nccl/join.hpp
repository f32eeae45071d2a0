// How ranks come together in one communicator of NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/nccl/comm.hpp"
#include "device/cuda.hpp"

namespace tutti::nccl {

/** This rank's GPU. */
struct OwnGpu {
  cuda::Uuid uuid{};      ///< which tells it from others
  std::string problem{};  ///< why it cannot be used; empty if it can
  OnGpu on_gpu = [](const std::function<void()>& action) { action(); };
};

/** connect() without CUDA. */
std::shared_ptr<Comm> join(Transport* cpu_transport, const OwnGpu& gpu);

}  // namespace tutti::nccl
