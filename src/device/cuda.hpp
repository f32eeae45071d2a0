// CUDA as the rest of the library sees it. Without CUDA, no_cuda.cpp stands in for all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "device/queue.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

/** How many GPUs there are, and in words why there are none. Looked up once. */
int device_count();

/** See tutti::device_of(). */
Device device_of(const void* data);

/** Runs `action` with a GPU current on this thread, as CUDA says. */
void with_device(int ordinal, const std::function<void()>& action);

/** Makes this process ready to work on a GPU: its context is made and all kernels of the library
 * are loaded, so that none has to be while another one runs that waits for a peer. */
void prepare(int ordinal);

/** A stream of our own, or the caller's `stream` (a cudaStream_t). `ordinal` < device_count(). */
std::shared_ptr<Stream::Queue> make_queue(int ordinal);
std::shared_ptr<Stream::Queue> borrow_queue(int ordinal, void* stream);

/** Page-locked memory of the CPU. */
Buffer allocate_pinned(std::int64_t bytes);

/** What tells one GPU from all others on any host. */
using Uuid = std::array<std::byte, 16>;
Uuid uuid_of(int ordinal);

}  // namespace tutti::cuda
