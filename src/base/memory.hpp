// Copies of bytes, and zeros.
#pragma once

#include <cstdint>
#include <cstring>

namespace tutti {

/** Copies `bytes` bytes; nothing to do where source and destination are the same. */
inline void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

inline void zero_bytes(void* to, std::int64_t bytes) {
  if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
}

}  // namespace tutti
