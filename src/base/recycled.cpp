// Lists of free blocks, one for each power of two.
#include "base/recycled.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <new>
#include <utility>

namespace tutti {
namespace {

struct Block {
  Block* next = nullptr;
};

constexpr std::size_t kSmallest = 4;  // as powers of two
constexpr std::size_t kLargest = 16;
// Blocks are cut from chunks, so that a few more than ever before do not need new memory.
constexpr std::size_t kChunk = 14;

/** The free blocks by size, and who works on them. */
struct FreeLists {
  std::mutex mutex;
  std::array<Block*, kLargest + 1> first{};
};

/** They never end: threads may outlive main(). */
FreeLists& free_lists() {
  static FreeLists* const lists = [] {
    // A child that was forked while another thread had the lists would wait for it for ever.
    ::pthread_atfork([] { free_lists().mutex.lock(); }, [] { free_lists().mutex.unlock(); },
                     [] { free_lists().mutex.unlock(); });
    return new FreeLists;
  }();
  return *lists;
}

std::size_t power_for(std::size_t bytes) {
  return std::max(kSmallest, static_cast<std::size_t>(std::bit_width(bytes - 1)));
}

/** New blocks, linked. */
Block* cut_chunk(std::size_t power) {
  const std::size_t size = std::size_t{1} << power;
  const std::size_t bytes = std::size_t{1} << std::max(power, kChunk);
  auto* const chunk = static_cast<std::byte*>(::operator new(bytes));
  Block* first = nullptr;
  for (std::size_t end = bytes; end > 0; end -= size) {
    first = ::new (chunk + end - size) Block{first};
  }
  return first;
}

class RecycledMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t /*alignment*/) override {
    return take_block(bytes);
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t /*alignment*/) override {
    give_block(block, bytes);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace

std::pmr::memory_resource& recycled_memory() {
  static RecycledMemory& only = *new RecycledMemory;  // never destroyed: it is used at exit
  return only;
}

void* take_block(std::size_t bytes) {
  const std::size_t power = power_for(bytes);
  if (power > kLargest) return ::operator new(bytes);
  FreeLists& lists = free_lists();
  const std::lock_guard lock(lists.mutex);
  Block*& first = lists.first[power];
  if (first == nullptr) first = cut_chunk(power);
  return std::exchange(first, first->next);
}

void give_block(void* memory, std::size_t bytes) noexcept {
  const std::size_t power = power_for(bytes);
  if (power > kLargest) return ::operator delete(memory);
  FreeLists& lists = free_lists();
  const std::lock_guard lock(lists.mutex);
  Block*& first = lists.first[power];
  first = ::new (memory) Block{first};
}

}  // namespace tutti
