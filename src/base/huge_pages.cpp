// Asks the kernel for huge pages.
#include "base/huge_pages.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

#include "base/page_size.hpp"

namespace tutti {

void* map_aligned(std::int64_t bytes, int protection, int flags, int fd) {
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes < kHugePage) return ::mmap(nullptr, size, protection, flags, fd, 0);
  // Addresses for more than is needed, of which the ends are given back.
  constexpr auto kAlignment = static_cast<std::size_t>(kHugePage);
  void* const reserved = ::mmap(nullptr, size + kAlignment, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  auto* const first = static_cast<std::byte*>(reserved);
  auto* const reserved_end = first + size + kAlignment;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(first) % kAlignment;
  const std::size_t before = past == 0 ? 0 : kAlignment - past;
  void* const base = ::mmap(first + before, size, protection, flags | MAP_FIXED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, size + kAlignment);
    errno = error;
    return MAP_FAILED;
  }
  if (before > 0) ::munmap(first, before);
  // A mapping ends with a page.
  auto* const end = first + round_up(static_cast<std::int64_t>(before + size), page_size());
  if (end < reserved_end) ::munmap(end, static_cast<std::size_t>(reserved_end - end));
  return base;
}

bool put_into_huge_pages(std::byte* from, std::int64_t bytes) noexcept {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE: younger than some C libraries
  return ::madvise(from, static_cast<std::size_t>(bytes), kCollapse) == 0;
}

}  // namespace tutti
