// The key-value store among processes of one host: a table in shared memory.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shm/flag.hpp"
#include "comm/shm/store/heap.hpp"
#include "comm/shm/store/robust_lock.hpp"

namespace tutti::shm {

/** What a key and its value begin with, in a block of the heap; the key follows, then the value. */
struct StoreEntry {
  HeapBlock block;  ///< `next` is that of the same bucket
  std::uint64_t hash;
  std::int64_t key_bytes;
  std::int64_t value_bytes;
  std::int32_t readers;  ///< that copy the value, for whom the entry stays
  std::int32_t listed;   ///< whether it is in the table; who goes last frees one that is not
};

/** The start of the segment. */
struct StoreHeader {
  static constexpr std::size_t kBuckets = 16384;

  RobustLock lock;  ///< of all that follows
  Flag changes;     ///< grows when a key has got a value; may be looked at without the lock
  HeapState heap;
  std::array<HeapOffset, kBuckets> buckets;
};

/**
 * All of it lies in one segment, which whoever knows its name maps. A value is written before its
 * key is in the table, and copied without the lock: so nobody sees a part of one, or waits while a
 * long one is copied. A process that is killed takes with it, at most, what it was about to set,
 * and the memory of that and of a value that it was reading; unless it has the lock (see
 * RobustLock). All calls are safe from several threads.
 */
class HostStore {
 public:
  /** Makes the segment `name`, which is the caller's to remove. Throws SystemError. */
  static HostStore create(const std::string& name, int rank, std::chrono::milliseconds timeout);
  /** Opens one that has been made. Throws SystemError. */
  static HostStore open(const std::string& name, int rank, std::chrono::milliseconds timeout);

  // What blocks does so for a moment, but gets and pops. Errors: PeerLost as RobustLock says.

  /** The key has this value from now on. Throws SystemError, naming it, if there is no memory for
   * that, and the key keeps the value that it had. */
  void set(std::string_view key, std::span<const std::byte> value);
  /** Adds to the number that the key has, in decimal digits; 0 if it has no value. The sum. Throws
   * InvalidArgument if it is no number, or out of range. */
  std::int64_t add(std::string_view key, std::int64_t delta);

  enum class Take : std::uint8_t { copy, remove };
  /**
   * The value of the key. Waits for one, at most for `timeout`; then DeadlineExceeded names the
   * key. `look` is called now and then meanwhile, and what it throws ends the wait.
   */
  std::vector<std::byte> get(std::string_view key, Take take, std::chrono::milliseconds timeout,
                             const std::function<void()>& look);

 private:
  class Draft;
  class Reader;

  HostStore(Segment segment, int rank, std::chrono::milliseconds timeout);
  StoreHeader& header() const { return *reinterpret_cast<StoreHeader*>(control_->base()); }
  StoreEntry& entry(HeapOffset offset) const {
    return reinterpret_cast<StoreEntry&>(heap_.block(offset));
  }
  std::string_view key_of(const StoreEntry& entry) const;

  /** A turn: the lock, and a heap that is up to date. */
  class Turn {
   public:
    explicit Turn(HostStore& store) : hold_(store.header().lock, store.rank_, store.timeout_) {
      store.heap_.follow(store.header().heap);
    }

   private:
    RobustLock::Hold hold_;
  };

  // In a turn.
  /** What points to the entry of a key: 0 if it has none. */
  HeapOffset& find(std::string_view key, std::uint64_t hash);
  HeapOffset make_entry(std::string_view key, std::uint64_t hash, std::int64_t value_bytes);
  /** Puts it in the table. The entry that was there for the key, if nobody reads it: to drop(). */
  HeapOffset list(HeapOffset added);
  /** Takes it out of the table. The same. */
  HeapOffset unlist(HeapOffset& link);

  /** Frees an entry that nobody can find any more; 0 is none. Not in a turn. */
  void drop(HeapOffset offset) noexcept;
  std::optional<std::vector<std::byte>> find_value(std::string_view key, Take take);

  int rank_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Mapping> control_;  // with the header where it was at first
  Heap heap_;
};

}  // namespace tutti::shm
