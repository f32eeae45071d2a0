// Which GPUs there are, their memory, and what their return codes say.
#include <cerrno>
#include <cstring>
#include <string>

#include "base/log.hpp"
#include "device/cuda.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/kernels.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

constexpr int kNone = -1;

std::string describe(cudaError_t code, const char* call) {
  std::string text =
      std::string(call) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")";
  // What CUDA says in a child of a process that has used it.
  if (code == cudaErrorInitializationError) {
    text +=
        "; CUDA cannot be used in a process that was forked after it was initialised: fork "
        "before that, or spawn the ranks";
  }
  return text;
}

int count_devices() {
  int count = 0;  // which a failing call leaves alone
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  // Without a driver the code is cudaErrorInsufficientDriver, without a device cudaErrorNoDevice.
  cudaGetLastError();
  if (code == cudaErrorInitializationError) {
    throw BackendUnavailable(describe(code, "cudaGetDeviceCount"));
  }
  const std::string reason = code == cudaSuccess ? "there is none" : cudaGetErrorString(code);
  log(LogLevel::info, "no GPU is used: " + reason);
  return 0;
}

/** Whether this process has a context on a device. */
bool is_in_use(int ordinal) {
  // cuDevicePrimaryCtxGetState() of the driver, which is not linked.
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = [] {
    constexpr unsigned kVersion = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                              kVersion, cudaEnableDefault, &result);
    const bool good = code == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return good ? reinterpret_cast<GetState>(found) : nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  if (get_state != nullptr && get_state(ordinal, &flags, &active) != 0) active = 1;
  return active != 0;
}

/** A device that this process has a context on, the current one if it has; kNone if there is none.
 */
int device_in_use() {
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (is_in_use(current)) return current;
  for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
    if (is_in_use(ordinal)) return ordinal;
  }
  return kNone;
}

}  // namespace

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // or a later launch would be blamed for it
  const std::string text = describe(code, call);
  if (code == cudaErrorMemoryAllocation) throw SystemError(text, ENOMEM);
  throw Error(text);
}

void check_quietly(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  cudaGetLastError();
  try {
    log(LogLevel::warn, describe(code, call));
  } catch (const std::exception&) {  // out of memory: the message is lost
  }
}

DeviceGuard::DeviceGuard(int ordinal) {
  check(cudaGetDevice(&former_), "cudaGetDevice");
  moved_ = former_ != ordinal;
  if (moved_) check(cudaSetDevice(ordinal), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
  if (moved_ && is_in_use(former_)) check_quietly(cudaSetDevice(former_), "cudaSetDevice");
}

int device_count() {
  static const int count = count_devices();
  return count;
}

void with_device(int ordinal, const std::function<void()>& action) {
  const DeviceGuard guard(ordinal);
  action();
}

void with_device_quietly(int ordinal, const std::function<void()>& action) noexcept {
  int current = 0;
  if (cudaGetDevice(&current) == cudaErrorCudartUnloading) return;  // the process ends
  try {
    with_device(ordinal, action);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void prepare(int ordinal) {
  if (device_count() == 0) throw BackendUnavailable("there is no GPU that this process can use");
  with_device(ordinal, [] {
    check(cudaFree(nullptr), "cudaFree");  // makes the context, if nobody has
    load_kernels();
  });
}

Device device_of(const void* data) {
  Device device{DeviceKind::cuda, 0};
  if (data == nullptr) {
    check(cudaGetDevice(&device.ordinal), "cudaGetDevice");
    return device;
  }
  // CUDA would use the current GPU to look; without any in use there is no memory of one.
  const int in_use = device_in_use();
  if (in_use == kNone) return {};
  const DeviceGuard guard(in_use);
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return {};
  }
  device.ordinal = attributes.device;
  return device;
}

Buffer allocate_pinned(std::int64_t bytes) {
  // Page-locked for all devices, whichever makes it: one that is in use, if there is any.
  int ordinal = device_in_use();
  if (ordinal == kNone) check(cudaGetDevice(&ordinal), "cudaGetDevice");
  const DeviceGuard guard(ordinal);
  void* data = nullptr;
  check(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable),
        "cudaHostAlloc");
  const std::shared_ptr<void> owner(data, [ordinal](void* memory) {
    with_device_quietly(ordinal, [&] { check_quietly(cudaFreeHost(memory), "cudaFreeHost"); });
  });
  return {data, bytes, owner};
}

Uuid uuid_of(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  Uuid uuid;
  static_assert(sizeof(properties.uuid) == sizeof(uuid));
  std::memcpy(uuid.data(), &properties.uuid, sizeof(uuid));
  return uuid;
}

}  // namespace tutti::cuda
