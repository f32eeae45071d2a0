// Rows that one process changes while others read them: no element is ever seen in parts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::ps {

/** Copies elements in vectors of four, as a processor reads and writes whole ones. Not seen by
 * ThreadSanitizer, since the elements may be changing. */
[[gnu::no_sanitize_thread]] inline void copy_row(const float* from, float* to, std::int64_t count) {
  struct Four {
    float elements[4];
  };
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Four four;
    __builtin_memcpy(&four, from + i, sizeof(four));
    __builtin_memcpy(to + i, &four, sizeof(four));
  }
  for (; i < count; ++i) to[i] = from[i];
}

/** Brings the cache lines of `count` elements near. */
inline void prefetch_row(const float* row, std::int64_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(row);
  const auto size = count * static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t i = 0; i < size; i += 64) __builtin_prefetch(bytes + i);
  __builtin_prefetch(bytes + size - 1);
  // GCC takes functions that only prefetch for ones without effect, and leaves out their calls.
  __asm__ volatile("" : : "r"(bytes));
}

}  // namespace tutti::ps
