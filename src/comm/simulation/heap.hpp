// How much memory simulated processes take, which have one heap together.
#pragma once

#include <malloc.h>

#include <cstdint>

namespace tutti::simulation {

/** Bytes that are allocated now; always 0 under a sanitizer that has an allocator of its own. */
inline std::int64_t heap_in_use() {
  const auto heap = ::mallinfo2();
  return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace tutti::simulation
