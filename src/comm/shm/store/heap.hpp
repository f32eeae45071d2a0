// Memory for blocks of any length in a segment that grows, shared by processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/shm/memory/segment.hpp"

namespace tutti::shm {

/** Where something lies, in bytes from the start of the segment. 0: nowhere. */
using HeapOffset = std::int64_t;

/** What a block begins with. */
struct HeapBlock {
  HeapOffset next;  ///< of a list: the heap's of free blocks, or its user's
  std::int64_t size_class;
};

/** What the processes that use a heap share, in the segment before the blocks. */
struct HeapState {
  static constexpr std::size_t kClasses = 176;

  std::int64_t length;  ///< of the segment, which has memory only where somebody asked for it
  HeapOffset used;      ///< everything before has been given out at some time
  HeapOffset room;      ///< of the chunk that small blocks are cut off from: what is left of it,
  HeapOffset room_end;  ///< and where that ends
  std::array<HeapOffset, kClasses> free;
};

/**
 * Blocks come in lengths a quarter apart. A free one waits for the next of its length: those of up
 * to 128 KiB with their memory, which they have from chunks of 1 MiB; longer ones without it, but
 * for their first page, so that what was freed is the machine's again.
 *
 * The segment is longer than its memory, and grows; each process maps it anew when it needs to.
 * Calls are one at a time, over all processes, unless it says otherwise.
 */
class Heap {
 public:
  explicit Heap(Segment segment);
  /** By whoever made the segment, once: its first `begin` bytes, whole pages, are others'. */
  static void initialise(HeapState& state, std::int64_t begin);

  /** Before anything else in a turn: maps what others have added. Throws SystemError. */
  void follow(const HeapState& state);

  /** A block for `bytes` bytes, its header included. A long one, for which check_room() has been
   * called, has no memory yet but for its first page. Throws SystemError; nothing has changed then.
   */
  HeapOffset allocate(HeapState& state, std::int64_t bytes);
  /** Gives a block back. */
  void free(HeapState& state, HeapOffset offset);

  /** Whether the machine has memory for `bytes` more, which may be asked at any time: throws
   * SystemError if not. */
  static void check_room(std::int64_t bytes);
  /** Gives a long block memory for `bytes` bytes. Throws SystemError if there is not enough. At any
   * time. */
  void fill(HeapOffset block, std::int64_t bytes) const;
  /** Takes it away again. At any time. */
  void empty(HeapOffset block, std::int64_t bytes) const noexcept;
  static bool is_long(std::int64_t bytes) { return bytes > kLongestSmall; }

  HeapBlock& block(HeapOffset offset) const {
    return *reinterpret_cast<HeapBlock*>(mapping_->base() + offset);
  }
  /** What keeps the memory of blocks where it is, for use between turns. */
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

 private:
  static constexpr std::int64_t kLongestSmall = std::int64_t{128} << 10;
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  /** The next `bytes` bytes, of which the first `filled` have memory. */
  HeapOffset extend(HeapState& state, std::int64_t bytes, std::int64_t filled);

  Segment segment_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace tutti::shm
