// CUDA as the rest of the library sees it. Without CUDA, no_cuda.cpp stands in for all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/queue.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

/** How many GPUs there are, and in words why there are none. Looked up once. */
int device_count();

/** See tutti::device_of(). */
Device device_of(const void* data);

/** A stream of our own, or the caller's `stream` (a cudaStream_t). `ordinal` < device_count(). */
std::shared_ptr<Stream::Queue> make_queue(int ordinal);
std::shared_ptr<Stream::Queue> borrow_queue(int ordinal, void* stream);

/** Page-locked memory of the CPU. */
Buffer allocate_pinned(std::int64_t bytes);

/** What tells one GPU from all others on any host. */
using Uuid = std::array<std::byte, 16>;
Uuid uuid_of(int ordinal);

}  // namespace tutti::cuda
