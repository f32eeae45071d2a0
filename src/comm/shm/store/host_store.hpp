// The key-value store among processes of one host: a table in shared memory.
#pragma once

#include <array>
#include <atomic>
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

#include "comm/key_values.hpp"
#include "comm/shm/memory/flag.hpp"
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

/** The start of the segment; a byte for each rank follows, which says whether it has left. */
struct StoreHeader {
  static constexpr std::size_t kBuckets = 16384;

  RobustLock lock;                 ///< of the heap and the buckets
  Flag changes;                    ///< grows when a key has got a value, or a rank is lost
  std::atomic<std::int32_t> lost;  ///< the first rank that was lost, and one more; 0 if none was
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
class HostStore final : public KeyValues {
 public:
  /** Makes the segment `name`, which is the caller's to remove, for rank `rank` of `ranks`. Throws
   * SystemError. */
  static std::unique_ptr<HostStore> create(const std::string& name, int rank, int ranks,
                                           std::chrono::milliseconds timeout);
  /** Opens one that has been made. Throws SystemError. */
  static std::unique_ptr<HostStore> open(const std::string& name, int rank,
                                         std::chrono::milliseconds timeout);
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;
  ~HostStore() override = default;

  std::chrono::milliseconds timeout() const { return timeout_; }

  // What blocks does so for a moment, but gets and pops. Errors: PeerLost as RobustLock says, and
  // ProcessesEnded of gets and pops after lose().

  void set(std::string_view key, std::span<const std::byte> value) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::vector<std::byte> get(std::string_view key, Take take, std::chrono::milliseconds timeout,
                             const std::function<void()>& look) override;

  /** Throws SystemError if there is no memory for a value of so many bytes, which comes into this
   * process first. */
  void check_room(std::string_view key, std::int64_t value_bytes) const;
  /** This rank needs the store no longer: its process may end. */
  void leave() noexcept { left(rank_) = true; }
  bool has_left(int rank) const { return left(rank); }
  /** Ends all waits with the loss of `rank`, whose process has ended. */
  void lose(int rank) noexcept;

 private:
  class Draft;
  class Reader;

  HostStore(Segment segment, int rank, std::chrono::milliseconds timeout);
  StoreHeader& header() const { return *reinterpret_cast<StoreHeader*>(control_->base()); }
  std::atomic<bool>& left(int rank) const {
    return reinterpret_cast<std::atomic<bool>*>(&header() + 1)[rank];
  }
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
