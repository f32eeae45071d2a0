// Memory for the messages of one operation between hosts.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace tutti {

/**
 * Memory of the collectives over a Wire, which the next one uses again; it goes with the wire. What
 * is small and needed everywhere comes from recycled.hpp. Not thread-safe.
 */
class ScratchPool {
 public:
  /** What happens to memory that messages may still touch. */
  using Leave = void (*)(std::shared_ptr<const void> memory) noexcept;
  explicit ScratchPool(Leave leave_to) : leave_(leave_to) {}
  /** Where there are no messages: it is freed. */
  // NOLINTNEXTLINE(performance-unnecessary-value-param): as Leave has it
  static void drop(std::shared_ptr<const void> /*memory*/) noexcept {}
  struct Block {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  /** A free block of at least `bytes` bytes, in whole cache lines: the shortest there is, or a new
   * one, which takes the place of a shorter one. */
  Block take(std::int64_t bytes) {
    const auto needed = static_cast<std::size_t>(bytes);
    auto best = free_.begin();  // the shortest that is long enough, or else the longest
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      const bool fits = block->bytes >= needed;
      if (best->bytes >= needed ? fits && block->bytes < best->bytes : block->bytes > best->bytes) {
        best = block;
      }
    }
    Block block;
    if (best != free_.end()) {
      block = std::move(*best);
      free_.erase(best);
    }
    if (block.bytes >= needed) return block;
    block.memory.reset();
    return new_block(std::bit_ceil(needed));
  }

  void leave(Block block) const noexcept { leave_(std::move(block.memory)); }

  /** Frees what is free. */
  void clear() noexcept { free_.clear(); }

  void give_back(Block block) noexcept {
    try {
      free_.push_back(std::move(block));
    } catch (const std::bad_alloc&) {  // then it is freed
    }
  }

 private:
  static Block new_block(std::size_t bytes) {
    constexpr std::align_val_t kCacheLine{64};
    auto* memory = static_cast<std::byte*>(::operator new[](bytes, kCacheLine));
    return {{memory, [](std::byte* old) { ::operator delete[](old, kCacheLine); }}, bytes};
  }

  Leave leave_;
  std::vector<Block> free_;
};

/**
 * Uninitialised memory that messages read or write. If an exception ends the operation, messages
 * may still touch it: then it is left to them.
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
      pool_->leave(std::move(block_));
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

}  // namespace tutti
