// How much shared memory this machine still has room for.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/** In bytes. Plain bytes, so that one rank can tell the others. */
struct AvailableMemory {
  std::int64_t directory = 0;  ///< free in /dev/shm
  std::int64_t memory = 0;     ///< available without swapping: see machine_memory()

  /** Whether `ranks` parts of `bytes` bytes fit. */
  bool fits(std::int64_t bytes, int ranks) const;
  /** "/dev/shm has 1 bytes free, the machine 2 bytes of memory". */
  std::string describe() const;
};

/** What there is now. Others may take it before the caller does. Throws SystemError. */
AvailableMemory available_memory();

/**
 * The least of what the kernel takes for available (MemAvailable) and of what the limits of this
 * process' cgroups, version 1 or 2, leave over beside what can be dropped from the page cache.
 * Limits that cannot be read count for nothing. `root` is where proc and sys are, for tests.
 */
std::int64_t machine_memory(const std::string& root = "");

/** All memory that the machine has. */
std::int64_t physical_memory();

/** The most that /dev/shm can hold; physical_memory() where it was mounted without a size. Throws
 * SystemError. */
std::int64_t shared_memory_size();

/**
 * For memory that is taken piece by piece. Who takes more than the machine has, or a cgroup
 * permits, gets no error from the kernel: it kills somebody. To ask what there is takes reading
 * some files, so that is done again only when a small part of it has been spent. Not thread-safe.
 */
class MemoryBudget {
 public:
  /** Before so many bytes are taken. Throws SystemError with the sizes if there are not as many. */
  void spend(std::int64_t bytes);

 private:
  std::int64_t unasked_ = 0;  ///< that may be spent before the machine is asked again
};

}  // namespace tutti
