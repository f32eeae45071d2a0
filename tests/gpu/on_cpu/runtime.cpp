// CUDA's runtime as far as the library calls it: one GPU, whose memory is the host's. A stream's
// work is done when the call returns.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <set>

#include "gpu/on_cpu/grid.hpp"

namespace {

constexpr int kRubbish = 0xAB;
constexpr std::size_t kAlignment = 256;  // what CUDA promises
constexpr std::size_t kMargin = 4096;    // rubbish before and after an allocation

/** The allocations: where they begin and how long they are. */
std::map<const char*, std::size_t>& allocations() {
  static std::map<const char*, std::size_t> all;
  return all;
}

bool is_on_gpu(const void* data) {
  const auto* at = static_cast<const char*>(data);
  const auto after = allocations().upper_bound(at);
  if (after == allocations().begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return at < begin + bytes;
}

/** Where page-locked memory begins. */
std::set<const void*>& pinned() {
  static std::set<const void*> all;
  return all;
}

bool is_rubbish(const char* from) {
  return std::all_of(from, from + kMargin,
                     [](char byte) { return static_cast<unsigned char>(byte) == kRubbish; });
}

/** Any pointer that is not null will do; streams are told apart. */
template <class Handle>
cudaError_t make_handle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new char);
  return cudaSuccess;
}

}  // namespace

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
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* /*symbol*/, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = is_on_gpu(data)           ? cudaMemoryTypeDevice
                     : pinned().contains(data) ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  return make_handle(pool);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*name*/,
                                    void* /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  ++tutti::on_cpu::requests().allocations;
  auto* memory = static_cast<char*>(
      ::operator new(bytes + 2 * kMargin, std::align_val_t(kAlignment), std::nothrow));
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, kRubbish, bytes + 2 * kMargin);
  allocations()[memory + kMargin] = bytes;
  *data = memory + kMargin;
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) {
  auto* begin = static_cast<char*>(data);
  const auto allocation = allocations().find(begin);
  const std::size_t bytes = allocation->second;
  if (!is_rubbish(begin - kMargin) || !is_rubbish(begin + bytes)) {
    std::fprintf(stderr, "written before or behind an allocation of %zu bytes\n", bytes);
    std::abort();
  }
  allocations().erase(allocation);
  ::operator delete(begin - kMargin, std::align_val_t(kAlignment));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  *data = std::malloc(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  pinned().insert(*data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  pinned().erase(data);
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  tutti::on_cpu::note_launch();
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return make_handle(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/,
                                unsigned /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return make_handle(event);
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  ++tutti::on_cpu::requests().queries;
  return cudaSuccess;
}
}
// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
