// Return codes of CUDA, and the device that is current on a thread.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace tutti::cuda {

/** Throws Error with CUDA's own text unless `code` is cudaSuccess; SystemError for a lack of
 * memory. */
void check(cudaError_t code, const char* call);

/** For destructors: logs instead. Says nothing while the process ends. */
void check_quietly(cudaError_t code, const char* call) noexcept;

/** For destructors: runs `action` with a device current, and logs what fails. Does nothing while
 * the process ends. */
void with_device_quietly(int ordinal, const std::function<void()>& action) noexcept;

/**
 * Makes a device current on this thread, and the former one again at its end, unless nobody has
 * used that: to make it current would cost some hundred megabytes of its memory.
 */
class DeviceGuard {
 public:
  explicit DeviceGuard(int ordinal);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int former_ = -1;
  bool moved_ = false;
};

}  // namespace tutti::cuda
