// Memory for payloads in a shared memory object that grows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/available_memory.hpp"
#include "comm/shm/memory/segment.hpp"

namespace tutti::ps {

/**
 * A shared memory object of which one process hands out blocks. It is mapped once, with all of the
 * size that it may ever have, so nobody needs to be told that it has grown; pages are reserved
 * before they are handed out, so a full /dev/shm, or machine, is an error and no signal. Blocks
 * have powers of two of address space and are used again; free ones give their pages back when
 * pages are short, and large ones at once when free ones hold more than `most_idle` bytes. Not
 * thread-safe.
 */
class BlockHeap {
 public:
  /** Creates an object with a random name, whose first `header` bytes are reserved zeros. Unset,
   * `most_idle` is a small part of /dev/shm. Throws SystemError. */
  explicit BlockHeap(std::int64_t header, std::optional<std::int64_t> most_idle = {});

  const std::string& name() const { return name_; }
  std::byte* base() const { return mapping_->base(); }

  /** No block can be longer: for that there is address space, and room in /dev/shm. */
  std::int64_t most() const { return most_; }
  /** A block's number, which is never 0. Throws SystemError if there is no memory. */
  std::int64_t take(std::int64_t bytes);
  void give(std::int64_t block);
  std::int64_t offset_of(std::int64_t block) const { return at(block).offset; }
  std::span<std::byte> memory_of(std::int64_t block, std::int64_t bytes) const {
    return {base() + offset_of(block), static_cast<std::size_t>(bytes)};
  }

 private:
  struct Block {
    std::int64_t offset = 0;
    std::int64_t reserved = 0;  ///< bytes of it
    int size_class = 0;
  };
  const Block& at(std::int64_t block) const { return blocks_[static_cast<std::size_t>(block) - 1]; }
  /** Reserves what is missing of a block. Throws SystemError. */
  void reserve(Block& block, std::int64_t bytes);
  void give_back(Block& block);
  void give_back_free();
  /** What free blocks hold. */
  std::int64_t idle() const;

  static constexpr int kClasses = 48;  // of one page, two, four, ...

  std::string name_;
  std::int64_t most_;
  std::int64_t most_idle_;
  shm::Segment segment_;
  shm::NameGuard guard_;  // unless the other side has removed the name
  std::shared_ptr<shm::Mapping> mapping_;
  MemoryBudget budget_;
  std::int64_t end_;  // of the blocks made so far
  std::vector<Block> blocks_;
  std::array<std::vector<std::int64_t>, kClasses> free_;
};

/** Opens an object of the other side and removes its name; null if it cannot be seen here. Throws
 * SystemError. */
std::shared_ptr<shm::Mapping> open_heap(const std::string& name, std::int64_t header);

}  // namespace tutti::ps
