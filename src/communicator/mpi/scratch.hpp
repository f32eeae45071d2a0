// Memory for the length of one operation over MPI.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "communicator/mpi/session.hpp"

namespace tutti::mpi {

/** Memory of a communicator's operations, which the next one uses again. Not thread-safe. */
class ScratchPool {
 public:
  struct Block {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  /** A free block of at least `bytes` bytes: a longer one of an operation before, or a new one,
   * which takes the place of a shorter one. */
  Block take(std::int64_t bytes) {
    const auto needed = static_cast<std::size_t>(bytes);
    auto found = std::find_if(free_.begin(), free_.end(),
                              [&](const Block& block) { return block.bytes >= needed; });
    if (found == free_.end() && !free_.empty()) --found;
    Block block;
    if (found != free_.end()) {
      block = std::move(*found);
      free_.erase(found);
    }
    if (block.bytes >= needed) return block;
    const std::size_t rounded = std::bit_ceil(needed);
    block.memory.reset();
    block.memory = std::make_shared_for_overwrite<std::byte[]>(rounded);
    block.bytes = rounded;
    return block;
  }

  void give_back(Block block) noexcept {
    try {
      free_.push_back(std::move(block));
    } catch (const std::bad_alloc&) {  // then it is freed
    }
  }

 private:
  std::vector<Block> free_;
};

/**
 * Uninitialised memory that messages read or write. If an exception ends the operation, MPI may
 * still touch it whenever anybody calls MPI: then it is never freed.
 */
class Scratch {
 public:
  /** From `pool`, which outlives it. */
  Scratch(ScratchPool& pool, std::int64_t bytes)
      : pool_(&pool), exceptions_(std::uncaught_exceptions()) {
    if (bytes > 0) block_ = pool.take(bytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&& other) noexcept
      : pool_(other.pool_),
        block_(std::exchange(other.block_, {})),
        exceptions_(other.exceptions_) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Scratch() {
    if (!block_.memory) return;
    if (std::uncaught_exceptions() > exceptions_) {
      Session::leave_to_mpi(std::move(block_.memory));
    } else {
      pool_->give_back(std::move(block_));
    }
  }

  std::byte* data() const { return block_.memory.get(); }

 private:
  ScratchPool* pool_;
  ScratchPool::Block block_;
  int exceptions_;
};

}  // namespace tutti::mpi
