// A communicator of NCCL, and what all who call it need.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/nccl/library.hpp"

namespace tutti::nccl {

/** Runs an action with the rank's GPU current, as NCCL wants it on every thread that calls it. */
using OnGpu = std::function<void(const std::function<void()>&)>;

/** Shared by the Comm that owns it and by threads that are in a call to it, or end it. */
struct Handle {
  std::shared_ptr<const Library> library;
  OnGpu on_gpu;
  std::mutex mutex;  // one call at a time
  /** Both are written by NCCL in the middle of a call. The part is that of a split under way. */
  ncclComm_t comm = nullptr;
  ncclComm_t part = nullptr;
  std::atomic<bool> aborted = false;
  bool ended = false;                // under the mutex, as the next
  std::vector<void*> memory_left{};  // that the end has to give back
};

/** What NCCL has written so far. */
inline ncclComm_t now(ncclComm_t& comm) { return std::atomic_ref(comm).load(); }

}  // namespace tutti::nccl
