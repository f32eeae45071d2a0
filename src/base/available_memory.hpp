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

}  // namespace tutti
