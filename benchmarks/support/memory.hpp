// Memory of one process, on huge pages where the kernel has some.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace tutti::bench {

/** `bytes` bytes at a multiple of 2 MiB, touched. What a careful user of any library would take. */
class HugeMemory {
 public:
  explicit HugeMemory(std::int64_t bytes)
      : mapped_((static_cast<std::size_t>(bytes) + 2 * kPage - 1) / kPage * kPage) {
    base_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(base_);
    data_ = static_cast<std::byte*>(base_) + (kPage - address % kPage) % kPage;
    const auto length = static_cast<std::size_t>(bytes);
    ::madvise(data_, length, MADV_HUGEPAGE);
    std::memset(data_, 1, length);
  }
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory() { ::munmap(base_, mapped_); }

  void* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = std::size_t{2} << 20U;
  std::size_t mapped_;
  void* base_;
  std::byte* data_;
};

}  // namespace tutti::bench
