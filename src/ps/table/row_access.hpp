// Rows that one process changes while others read them: no element is ever seen in parts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::ps {

/** A processor reads and writes vectors of this size as a whole. */
using Four [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;

/** Not seen by ThreadSanitizer: the elements may be changing. */
[[gnu::no_sanitize_thread]] inline void copy_row(const float* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Four first = *reinterpret_cast<const Four*>(from + i);
    const Four second = *reinterpret_cast<const Four*>(from + i + 4);
    const Four third = *reinterpret_cast<const Four*>(from + i + 8);
    const Four fourth = *reinterpret_cast<const Four*>(from + i + 12);
    *reinterpret_cast<Four*>(to + i) = first;
    *reinterpret_cast<Four*>(to + i + 4) = second;
    *reinterpret_cast<Four*>(to + i + 8) = third;
    *reinterpret_cast<Four*>(to + i + 12) = fourth;
  }
  for (; i + 4 <= count; i += 4) {
    *reinterpret_cast<Four*>(to + i) = *reinterpret_cast<const Four*>(from + i);
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
