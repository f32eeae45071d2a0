// Sets, finds, and removes what the store has.
#include "comm/shm/store/host_store.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/log.hpp"
#include "base/memory.hpp"
#include "base/page_size.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/failure.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::shm {
namespace {

constexpr WaitPolicy kForAKey{.first_looks = 50,
                              .spin = std::chrono::microseconds(100),
                              .nap = std::chrono::milliseconds(50)};

constexpr std::int64_t kMostDigits = 20;  // of 64 bits, with the sign

std::int64_t header_bytes(int ranks) {
  const std::int64_t page = page_size();
  return (static_cast<std::int64_t>(sizeof(StoreHeader)) + ranks + page - 1) / page * page;
}

/** Values begin on a line of the cache, if their block does. */
std::int64_t value_place(std::int64_t key_bytes) {
  return (static_cast<std::int64_t>(sizeof(StoreEntry)) + key_bytes + 63) / 64 * 64;
}

std::int64_t bytes_of(const StoreEntry& entry) {
  return value_place(entry.key_bytes) + entry.value_bytes;
}

std::byte* start_of(StoreEntry& entry) { return reinterpret_cast<std::byte*>(&entry); }

}  // namespace

// --- Beginning ----------------------------------------------------------------------------------

HostStore::HostStore(Segment segment, int rank, std::chrono::milliseconds timeout)
    : rank_(rank), timeout_(timeout), control_(segment.map()), heap_(std::move(segment)) {}

std::unique_ptr<HostStore> HostStore::create(const std::string& name, int rank, int ranks,
                                             std::chrono::milliseconds timeout) {
  Segment segment = Segment::create(name);
  NameGuard guard(name);
  segment.reserve(0, header_bytes(ranks));
  std::unique_ptr<HostStore> store(new HostStore(std::move(segment), rank, timeout));
  store->header().lock.initialise();
  Heap::initialise(store->header().heap, header_bytes(ranks));
  guard.keep_name();
  return store;
}

std::unique_ptr<HostStore> HostStore::open(const std::string& name, int rank,
                                           std::chrono::milliseconds timeout) {
  Segment segment = Segment::open(name);
  if (!segment) throw SystemError("cannot find the store that another rank has made", ENOENT);
  return std::unique_ptr<HostStore>(new HostStore(std::move(segment), rank, timeout));
}

void HostStore::lose(int rank) noexcept {
  std::int32_t nobody = 0;
  header().lost.compare_exchange_strong(nobody, rank + 1);
  header().changes.signal().bump();
}

// --- The table ----------------------------------------------------------------------------------

std::string_view HostStore::key_of(const StoreEntry& entry) const {
  return {reinterpret_cast<const char*>(&entry + 1), static_cast<std::size_t>(entry.key_bytes)};
}

HeapOffset& HostStore::find(std::string_view key, std::uint64_t hash) {
  HeapOffset* link = &header().buckets[hash % StoreHeader::kBuckets];
  while (*link != 0) {
    StoreEntry& one = entry(*link);
    if (one.hash == hash && key_of(one) == key) break;
    link = &one.block.next;
  }
  return *link;
}

HeapOffset HostStore::make_entry(std::string_view key, std::uint64_t hash,
                                 std::int64_t value_bytes) {
  const auto key_bytes = std::ssize(key);
  const HeapOffset made = heap_.allocate(header().heap, value_place(key_bytes) + value_bytes);
  StoreEntry& one = entry(made);
  one.hash = hash;
  one.key_bytes = key_bytes;
  one.value_bytes = value_bytes;
  one.readers = 0;
  one.listed = 0;
  return made;
}

HeapOffset HostStore::unlist(HeapOffset& link) {
  const HeapOffset offset = link;
  StoreEntry& one = entry(offset);
  link = one.block.next;
  one.listed = 0;
  return one.readers == 0 ? offset : 0;
}

HeapOffset HostStore::list(HeapOffset added) {
  StoreEntry& one = entry(added);
  HeapOffset& link = find(key_of(one), one.hash);
  const HeapOffset replaced = link == 0 ? 0 : unlist(link);
  HeapOffset& first = header().buckets[one.hash % StoreHeader::kBuckets];
  one.block.next = first;
  one.listed = 1;
  first = added;
  return replaced;
}

void HostStore::drop(HeapOffset offset) noexcept {
  if (offset == 0) return;
  try {
    std::int64_t bytes = 0;
    {
      const Turn turn(*this);
      bytes = bytes_of(entry(offset));
      if (!Heap::is_long(bytes)) return heap_.free(header().heap, offset);
    }
    heap_.empty(offset, bytes);
    const Turn turn(*this);
    heap_.free(header().heap, offset);
  } catch (const std::exception& error) {  // it costs memory, but nothing else
    log(LogLevel::warn, std::string_view(error.what()));
  }
}

// --- Setting ------------------------------------------------------------------------------------

/** An entry that nobody can find yet. */
class HostStore::Draft {
 public:
  Draft(HostStore& store, std::string_view key, std::int64_t value_bytes) : store_(store) {
    Heap::check_room(value_place(std::ssize(key)) + value_bytes);
    {
      const Turn turn(store);
      offset_ = store.make_entry(key, hash_text(key), value_bytes);
      entry_ = &store.entry(offset_);
      mapping_ = store.heap_.mapping();
    }
    try {
      // A block without its memory would end the process that touches it.
      if (Heap::is_long(bytes_of(*entry_))) store.heap_.fill(offset_, bytes_of(*entry_));
    } catch (...) {
      store.drop(offset_);
      throw;
    }
    copy_bytes(entry_ + 1, key.data(), std::ssize(key));
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft() { store_.drop(offset_); }

  std::byte* value() { return start_of(*entry_) + value_place(entry_->key_bytes); }
  void publish() {
    HeapOffset replaced = 0;
    {
      const Turn turn(store_);
      replaced = store_.list(offset_);
    }
    offset_ = 0;
    store_.header().changes.signal().bump();
    store_.drop(replaced);
  }

 private:
  HostStore& store_;
  HeapOffset offset_ = 0;
  StoreEntry* entry_ = nullptr;
  std::shared_ptr<Mapping> mapping_;  // where that is
};

namespace {

/** Names what was to be set in an error of the system. */
template <class Action>
void setting(std::string_view key, std::int64_t bytes, const Action& action) {
  try {
    action();
  } catch (const SystemError& error) {
    throw SystemError("cannot set \"" + std::string(key) + "\" to " + std::to_string(bytes) +
                          " bytes: " + text_before_number(error),
                      error.error_number());
  }
}

}  // namespace

void HostStore::check_room(std::string_view key, std::int64_t value_bytes) const {
  setting(key, value_bytes, [&] { Heap::check_room(2 * value_bytes); });
}

void HostStore::set(std::string_view key, std::span<const std::byte> value) {
  std::optional<Draft> draft;
  setting(key, std::ssize(value), [&] { draft.emplace(*this, key, std::ssize(value)); });
  copy_bytes(draft->value(), value.data(), std::ssize(value));
  draft->publish();
}

std::int64_t HostStore::add(std::string_view key, std::int64_t delta) {
  const std::uint64_t hash = hash_text(key);
  std::int64_t sum = 0;
  HeapOffset replaced = 0;
  {
    const Turn turn(*this);
    if (const HeapOffset found = find(key, hash); found != 0) {
      StoreEntry& one = entry(found);
      const std::string text(
          reinterpret_cast<const char*>(start_of(one) + value_place(one.key_bytes)),
          static_cast<std::size_t>(std::min(one.value_bytes, kMostDigits)));
      const auto number = parse_number<std::int64_t>(text);
      if (!number || one.value_bytes > kMostDigits) {
        throw InvalidArgument("key is \"" + std::string(key) + "\", whose value of " +
                              std::to_string(one.value_bytes) + " bytes is no number to add to");
      }
      sum = *number;
    }
    if (__builtin_add_overflow(sum, delta, &sum)) {
      throw InvalidArgument("delta is " + std::to_string(delta) +
                            ", which makes the number of key \"" + std::string(key) +
                            "\" overflow");
    }
    const std::string text = std::to_string(sum);
    const HeapOffset added = make_entry(key, hash, std::ssize(text));
    StoreEntry& one = entry(added);
    copy_bytes(&one + 1, key.data(), std::ssize(key));
    copy_bytes(start_of(one) + value_place(one.key_bytes), text.data(), std::ssize(text));
    replaced = list(added);
  }
  header().changes.signal().bump();
  drop(replaced);
  return sum;
}

// --- Getting ------------------------------------------------------------------------------------

/** Keeps an entry while its value is copied. */
class HostStore::Reader {
 public:
  /** In a turn. */
  Reader(HostStore& store, HeapOffset offset)
      : store_(store),
        offset_(offset),
        entry_(&store.entry(offset)),
        mapping_(store.heap_.mapping()) {
    ++entry_->readers;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    bool last = false;
    try {
      const Turn turn(store_);
      last = --entry_->readers == 0 && entry_->listed == 0;
    } catch (const std::exception& error) {  // it costs memory, but nothing else
      log(LogLevel::warn, std::string_view(error.what()));
    }
    if (last) store_.drop(offset_);
  }

  std::span<const std::byte> value() const {
    return {start_of(*entry_) + value_place(entry_->key_bytes),
            static_cast<std::size_t>(entry_->value_bytes)};
  }

 private:
  HostStore& store_;
  HeapOffset offset_;
  StoreEntry* entry_;
  std::shared_ptr<Mapping> mapping_;  // where that is
};

std::optional<std::vector<std::byte>> HostStore::find_value(std::string_view key, Take take) {
  std::optional<Reader> reader;
  {
    const Turn turn(*this);
    HeapOffset& link = find(key, hash_text(key));
    if (link == 0) return std::nullopt;
    reader.emplace(*this, link);
    if (take == Take::remove) unlist(link);  // the reader drops it
  }
  const std::span<const std::byte> value = reader->value();
  return std::vector<std::byte>(value.data(), value.data() + value.size());
}

std::vector<std::byte> HostStore::get(std::string_view key, Take take,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void()>& look) {
  const Signal changes = header().changes.signal();
  for (Waiter waiter(kForAKey, timeout);;) {
    const std::uint32_t seen = changes.value();
    if (auto value = find_value(key, take)) return std::move(*value);
    if (const int lost = header().lost.load(); lost != 0) {
      look();  // it may have ended because the communicator has failed
      throw ProcessesEnded({lost - 1}, "its process has ended");
    }
    if (waiter.expired()) {
      look();
      throw DeadlineExceeded("no rank has set \"" + std::string(key) + "\" within " +
                             seconds_text(timeout));
    }
    if (waiter.spin([&] { return changes.value() != seen; })) {
      InterruptCheck::poll();
      if (!waiter.due(kForAKey.nap)) continue;
    }
    look();
    const auto left = std::max(timeout - waiter.waited(), std::chrono::milliseconds(1));
    waiter.nap([&](Waiter::Duration limit) {
      changes.sleep(seen, std::min<Waiter::Duration>(limit, left));
    });
  }
}

}  // namespace tutti::shm
