// Symmetric memory: allocations that all ranks of a host map.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communicator/shm/control.hpp"
#include "communicator/shm/segment.hpp"
#include "tutti/device.hpp"

namespace tutti::shm {

/** One allocation: each rank's part begins a stride after the one before. */
struct Region {
  std::int32_t number = Location::kPrivate;
  std::int64_t stride = 0;
  std::byte* own = nullptr;        ///< this rank's part
  std::weak_ptr<Mapping> mapping;  ///< lives as long as the user's Buffer
};

/**
 * The allocations of one communicator. They are numbered alike on all ranks. Where all ranks pass
 * memory of the same allocation, each of them has it mapped and can reach the others' parts.
 */
class SymmetricMemory {
 public:
  explicit SymmetricMemory(int rank) : rank_(rank) {}

  /** Enters an allocation that all ranks have made, and returns this rank's part of it. */
  Buffer add(std::shared_ptr<Mapping> mapping, std::int64_t stride, std::int64_t bytes);
  /** Where `bytes` bytes at `data` lie, if wholly inside this rank's part of an allocation. */
  Location locate(const void* data, std::int64_t bytes) const;
  /** The memory of rank `peer` at its `location`, which lies in an allocation of this rank too. */
  std::byte* resolve(int peer, const Location& location) const;

 private:
  int rank_;
  std::int32_t next_ = 0;
  std::vector<Region> regions_;
};

}  // namespace tutti::shm
