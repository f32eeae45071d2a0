// Lists of free blocks, one for each power of two.
#include "communicator/recycled.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <new>

namespace tutti {
namespace {

struct Block {
  Block* next = nullptr;
};

/** The free blocks of one size; as many as were ever in use at once. */
struct FreeList {
  std::atomic_flag busy;
  Block* first = nullptr;
};

constexpr std::size_t kSmallest = 4;  // as powers of two
constexpr std::size_t kLargest = 16;
using FreeLists = std::array<FreeList, kLargest + 1>;

/** They never end: threads may outlive main(). */
FreeLists& free_lists() {
  static FreeLists* const lists = new FreeLists;
  return *lists;
}

std::size_t power_for(std::size_t bytes) {
  const auto power = static_cast<std::size_t>(std::bit_width(bytes - 1));
  return power < kSmallest ? kSmallest : power;
}

/**
 * Runs `action` with the list to itself, or not at all: a process that was forked while another
 * thread had the list would wait for ever.
 */
template <class Action>
bool try_with(FreeList& list, const Action& action) {
  constexpr int kTries = 10'000;
  for (int tries = 0; tries < kTries; ++tries) {
    if (list.busy.test_and_set(std::memory_order_acquire)) continue;
    action();
    list.busy.clear(std::memory_order_release);
    return true;
  }
  return false;
}

}  // namespace

void* take_block(std::size_t bytes) {
  const std::size_t power = power_for(bytes);
  if (power > kLargest) return ::operator new(bytes);
  FreeList& list = free_lists()[power];
  Block* block = nullptr;
  try_with(list, [&] {
    block = list.first;
    if (block != nullptr) list.first = block->next;
  });
  return block != nullptr ? block : ::operator new (std::size_t{1} << power);
}

void give_block(void* memory, std::size_t bytes) noexcept {
  const std::size_t power = power_for(bytes);
  if (power <= kLargest) {
    FreeList& list = free_lists()[power];
    Block* block = ::new (memory) Block;
    const bool kept = try_with(list, [&] {
      block->next = list.first;
      list.first = block;
    });
    if (kept) return;
  }
  ::operator delete(memory);
}

}  // namespace tutti
