// CUDA's runtime as far as the library calls it: GPUs whose memory is the host's. A stream's work
// is done when the call returns, unless a test holds the stream up.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "gpu/on_cpu/gpus.hpp"
#include "gpu/on_cpu/grid.hpp"

namespace {

constexpr int kRubbish = 0xAB;
constexpr std::size_t kAlignment = 256;  // what CUDA promises
constexpr std::size_t kMargin = 4096;    // rubbish before and after an allocation

using Ended = std::shared_ptr<std::atomic<bool>>;

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
};

/** What all threads share. */
struct Gpus {
  std::mutex mutex;
  int count = 1;
  std::set<int> contexts;
  std::set<int> used;  // of those: who has one keeps it
  std::map<const char*, Allocation> allocations;
  std::map<std::pair<int, cudaStream_t>, std::vector<Ended>> streams;  // what they wait for
  std::map<cudaEvent_t, std::vector<Ended>> events;
  std::function<bool()> has_memory;
  std::set<const void*> loaded;
  std::set<const void*> pinned;  // where page-locked memory begins
};

Gpus& gpus() {
  static auto* const the_gpus = new Gpus;  // threads that are left alone may still call it
  return *the_gpus;
}

thread_local int current = 0;

cudaError_t need_memory() {
  return gpus().has_memory && !gpus().has_memory() ? cudaErrorMemoryAllocation : cudaSuccess;
}

/** Makes a context on the GPU that is current, as nearly every call does. */
cudaError_t use() {
  const std::lock_guard lock(gpus().mutex);
  if (!gpus().used.contains(current) && need_memory() != cudaSuccess) {
    return cudaErrorMemoryAllocation;
  }
  gpus().contexts.insert(current);
  gpus().used.insert(current);
  return cudaSuccess;
}

/** With the mutex held. */
const Allocation* allocation_of(const void* data) {
  const auto* at = static_cast<const char*>(data);
  const auto after = gpus().allocations.upper_bound(at);
  if (after == gpus().allocations.begin()) return nullptr;
  const auto& [begin, allocation] = *std::prev(after);
  return at < begin + allocation.bytes ? &allocation : nullptr;
}

bool is_rubbish(const char* from) {
  return std::all_of(from, from + kMargin,
                     [](char byte) { return static_cast<unsigned char>(byte) == kRubbish; });
}

/** A pointer to something. */
template <class Handle>
Handle make_handle() {
  return reinterpret_cast<Handle>(new char);
}

/** With the mutex held. The default stream is another one on each GPU. */
std::vector<Ended>& waits_of(cudaStream_t stream) {
  std::vector<Ended>& waits = gpus().streams[{stream == nullptr ? current : 0, stream}];
  std::erase_if(waits, [](const Ended& ended) { return ended->load(); });
  return waits;
}

/** cuDevicePrimaryCtxGetState() of the driver. */
int context_state(int device, unsigned* flags, int* active) {
  const std::lock_guard lock(gpus().mutex);
  *flags = 0;
  *active = gpus().used.contains(device) ? 1 : 0;
  return 0;
}

}  // namespace

namespace tutti::on_cpu {

void set_gpus(int count) { gpus().count = count; }

std::set<int> take_contexts() {
  const std::lock_guard lock(gpus().mutex);
  gpus().used.clear();
  return std::exchange(gpus().contexts, {});
}

void hold_up(cudaStream_t stream, std::shared_ptr<std::atomic<bool>> ended) {
  const std::lock_guard lock(gpus().mutex);
  waits_of(stream).push_back(std::move(ended));
}

void set_has_memory(std::function<bool()> has_memory) { gpus().has_memory = std::move(has_memory); }

bool may_launch(const void* kernel) {
  const std::lock_guard lock(gpus().mutex);
  return gpus().loaded.empty() || gpus().loaded.contains(kernel);
}

std::size_t loaded_kernels() {
  const std::lock_guard lock(gpus().mutex);
  return gpus().loaded.size();
}

}  // namespace tutti::on_cpu

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorLaunchTimeout:
      return "cudaErrorLaunchTimeout";
    default:
      return "an error";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidConfiguration:
      return "no GPU takes so many blocks or threads";
    case cudaErrorLaunchFailure:
      return "threads wait for others that never come";
    case cudaErrorLaunchTimeout:
      return "a block does not end";
    default:
      return "an error";
  }
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpus().count;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpus().count) return cudaErrorInvalidDevice;
  const int former = std::exchange(current, device);
  const cudaError_t result = use();
  if (result != cudaSuccess) current = former;
  return result;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* /*symbol*/, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&context_state);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  const std::lock_guard lock(gpus().mutex);
  gpus().loaded.insert(kernel);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  if (const cudaError_t result = use(); result != cudaSuccess) return result;
  const std::lock_guard lock(gpus().mutex);
  *attributes = {};
  const Allocation* const allocation = allocation_of(data);
  attributes->type = allocation != nullptr          ? cudaMemoryTypeDevice
                     : gpus().pinned.contains(data) ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  if (allocation != nullptr) attributes->device = allocation->device;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  *pool = make_handle<cudaMemPool_t>();
  return use();
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*name*/,
                                    void* /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  ++tutti::on_cpu::requests().allocations;
  use();
  if (const cudaError_t result = need_memory(); result != cudaSuccess) return result;
  auto* memory = static_cast<char*>(
      ::operator new(bytes + 2 * kMargin, std::align_val_t(kAlignment), std::nothrow));
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, kRubbish, bytes + 2 * kMargin);
  const std::lock_guard lock(gpus().mutex);
  gpus().allocations[memory + kMargin] = {bytes, current};
  *data = memory + kMargin;
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) {
  use();
  const std::lock_guard lock(gpus().mutex);
  auto* begin = static_cast<char*>(data);
  const auto allocation = gpus().allocations.find(begin);
  const std::size_t bytes = allocation->second.bytes;
  if (!is_rubbish(begin - kMargin) || !is_rubbish(begin + bytes)) {
    std::fprintf(stderr, "written before or behind an allocation of %zu bytes\n", bytes);
    std::abort();
  }
  gpus().allocations.erase(allocation);
  ::operator delete(begin - kMargin, std::align_val_t(kAlignment));
  return cudaSuccess;
}
cudaError_t cudaFree(void* /*nothing*/) { return use(); }
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  if (const cudaError_t result = use(); result != cudaSuccess) return result;
  *data = std::malloc(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(gpus().mutex);
  gpus().pinned.insert(*data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  use();
  const std::lock_guard lock(gpus().mutex);
  gpus().pinned.erase(data);
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::memcpy(to, from, bytes);
  return use();
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  tutti::on_cpu::note_launch();
  std::memset(data, value, bytes);
  return use();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = make_handle<cudaStream_t>();
  return use();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  use();
  const std::lock_guard lock(gpus().mutex);
  gpus().streams.erase({0, stream});
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  use();
  const std::lock_guard lock(gpus().mutex);
  const std::vector<Ended> waits = gpus().events[event];
  std::vector<Ended>& more = waits_of(stream);
  more.insert(more.end(), waits.begin(), waits.end());
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = make_handle<cudaEvent_t>();
  use();
  return need_memory();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  use();
  const std::lock_guard lock(gpus().mutex);
  gpus().events[event] = waits_of(stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  use();
  const std::lock_guard lock(gpus().mutex);
  ++tutti::on_cpu::requests().queries;
  const std::vector<Ended>& waits = gpus().events[event];
  return std::all_of(waits.begin(), waits.end(), [](const Ended& ended) { return ended->load(); })
             ? cudaSuccess
             : cudaErrorNotReady;
}
}
// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
