// Symmetric memory: allocations that all ranks of a host map.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/shm/memory/control.hpp"
#include "comm/shm/memory/segment.hpp"
#include "tutti/device.hpp"

namespace tutti::shm {

/** The memory of an allocation; lives as long as the user's Buffer. */
struct Allocation {
  std::shared_ptr<Mapping> mapping;  ///< of all ranks' parts
  /** Of this rank's part, for isolate(): a descriptor would be one of the few of the process. */
  std::unique_ptr<Mapping> copy;
};

/** One allocation: each rank's part begins a stride after the one before. */
struct Region {
  std::int32_t number = Location::kPrivate;
  std::int64_t stride = 0;
  std::byte* own = nullptr;  ///< this rank's part
  std::weak_ptr<Allocation> allocation;
};

/**
 * The allocations of one communicator. They are numbered alike on all ranks. Where all ranks pass
 * memory of the same allocation, each of them has it mapped and can reach the others' parts.
 */
class SymmetricMemory {
 public:
  explicit SymmetricMemory(int rank) : rank_(rank) {}

  /** Enters an allocation that all ranks have made, and returns this rank's part of it. */
  Buffer add(Allocation allocation, std::int64_t stride, std::int64_t bytes);
  /** Where `bytes` bytes at `data` lie, if wholly inside this rank's part of an allocation. */
  Location locate(const void* data, std::int64_t bytes) const;
  /** The memory of rank `peer` at its `location`, which lies in an allocation of this rank too. */
  std::byte* resolve(int peer, const Location& location) const;

  /**
   * Makes this rank's parts its own, at the same addresses and with what they hold: what other
   * processes still write into them goes nowhere. For a communicator that has failed; later
   * allocations come as this rank's own. Safe from any thread, while others use the memory. A part
   * for which the system refuses is left as it is, with a warning in the log.
   */
  void isolate() noexcept;

 private:
  /** isolate() of one part. */
  void isolate(const Region& region) const noexcept;

  int rank_;
  std::int32_t next_ = 0;
  std::mutex changing_;  // regions_ and isolated_
  bool isolated_ = false;
  std::vector<Region> regions_;
};

}  // namespace tutti::shm
