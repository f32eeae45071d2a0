// Reads the private memory of other processes, without a copy in between.
#pragma once

#include <cstdint>

#include "comm/shm/memory/control.hpp"

namespace tutti::shm {

/**
 * What process_vm_readv() does, where the kernel lets it: that takes the rights of a debugger,
 * which containers and hardened systems keep back. Other ranks' memory is only read: what a rank
 * wrote into the memory of another might come after that one has given up on the call.
 */
class SingleCopy {
 public:
  SingleCopy(const Control& control, int rank, int size);
  SingleCopy(const SingleCopy&) = delete;
  SingleCopy& operator=(const SingleCopy&) = delete;
  ~SingleCopy() = default;

  /** Whether this rank can read the memory of all others; found out by the first call, when all
   * must have made their SingleCopy. */
  bool reaches_all();
  /** Copies `bytes` bytes at `address` in the process of rank `peer`. 0, or errno. */
  int read(int peer, void* to, std::uint64_t address, std::int64_t bytes) const;

 private:
  enum class Reach : std::uint8_t { unknown, none, all };

  Control control_;
  int rank_;
  int size_;
  std::uint64_t token_;  // that the others find here if it is this process that they read
  Reach reach_ = Reach::unknown;
};

}  // namespace tutti::shm
