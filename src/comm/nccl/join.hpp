// How ranks come together in one communicator of NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/agreement.hpp"
#include "comm/nccl/comm.hpp"
#include "device/cuda.hpp"

namespace tutti::nccl {

/** This rank's GPU, and how it is used. */
struct OwnGpu {
  cuda::Uuid uuid{};      ///< which tells it from others
  std::string problem{};  ///< why it cannot be used; empty if it can
  std::int64_t compared = gpu_calls_to_compare();
  OnGpu on_gpu = [](const std::function<void()>& action) { action(); };
};

/** connect() without CUDA. */
std::shared_ptr<Comm> join(Transport* cpu_transport, const OwnGpu& gpu);

}  // namespace tutti::nccl
