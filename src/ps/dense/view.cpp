// Maps pages of shared memory to a second place.
#include "ps/dense/view.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ps/dense/layout.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

void require_pages() {
  const long bytes = sysconf(_SC_PAGESIZE);
  if (bytes > 0 && kPageBytes % bytes == 0) return;
  throw SystemError("dense parameters cannot be read in place: pages of this machine have " +
                        std::to_string(bytes) + " bytes, but blocks begin every " +
                        std::to_string(kPageBytes),
                    ENOTSUP);
}

[[noreturn]] void fail(const char* call) {
  const int error = errno;
  throw SystemError(std::string("cannot map dense parameters once more: ") + call, error);
}

std::int64_t whole_pages(std::size_t bytes) {
  return (static_cast<std::int64_t>(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

std::shared_ptr<const shm::Mapping> map_again(const std::vector<std::span<const float>>& parts,
                                              shm::Access access) {
  require_pages();
  std::int64_t bytes = 0;
  for (const std::span<const float> part : parts) bytes += whole_pages(part.size_bytes());
  void* const base = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail("mmap");
  auto mapping = std::make_shared<const shm::Mapping>(static_cast<std::byte*>(base), bytes);
  std::byte* to = mapping->base();
  for (const std::span<const float> part : parts) {
    const std::int64_t size = whole_pages(part.size_bytes());
    // An old size of 0 leaves what is mapped where it is. This call alone takes a pointer to what
    // it does not write.
    void* const from = const_cast<float*>(part.data());
    if (mremap(from, 0, static_cast<std::size_t>(size), MREMAP_MAYMOVE | MREMAP_FIXED, to) ==
        MAP_FAILED) {
      fail("mremap");
    }
    to += size;
  }
  if (access == shm::Access::read_only &&
      mprotect(base, static_cast<std::size_t>(bytes), PROT_READ) != 0) {
    fail("mprotect");
  }
  return mapping;
}

}  // namespace tutti::ps
