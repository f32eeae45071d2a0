// Memory in huge pages: one entry of the processor's tables for 2 MiB instead of 512.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

inline constexpr std::int64_t kHugePage = std::int64_t{2} << 20U;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/**
 * mmap() at any address, but what may have huge pages begins at the boundary of one, which not all
 * kernels see to. MAP_FAILED and errno if it cannot.
 */
void* map_aligned(std::int64_t bytes, int protection, int flags, int fd);

/**
 * Puts a range of whole huge pages, each of which has been touched, into huge pages now: also where
 * the system gives none when memory is first touched, as Linux does in /dev/shm unless it is told
 * otherwise. False where it does not (before Linux 6.1, or for want of contiguous memory): then
 * nothing changes.
 */
bool put_into_huge_pages(std::byte* from, std::int64_t bytes) noexcept;

}  // namespace tutti
