// Gives out blocks, and takes them back.
#include "comm/shm/store/heap.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/available_memory.hpp"
#include "base/page_size.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

// Lengths are 4, 5, 6 or 7 units times a power of two.
constexpr std::int64_t kUnit = 32;

std::size_t smallest_class_of(std::int64_t bytes) {
  const auto units =
      static_cast<std::uint64_t>(std::max((bytes + kUnit - 1) / kUnit, std::int64_t{4}));
  const auto power = static_cast<std::uint64_t>(std::bit_width(units)) - 3;
  const std::uint64_t quarters = (units + (std::uint64_t{1} << power) - 1) >> power;
  return 4 * power + quarters - 4;  // 8 quarters are 4 of the next power
}

std::int64_t length_of(std::size_t size_class) {
  return static_cast<std::int64_t>(4 + size_class % 4) * kUnit << (size_class / 4);
}

std::int64_t on_pages(std::int64_t bytes) {
  const std::int64_t page = page_size();
  return (bytes + page - 1) / page * page;
}

}  // namespace

Heap::Heap(Segment segment) : segment_(std::move(segment)), mapping_(segment_.map()) {}

void Heap::initialise(HeapState& state, std::int64_t begin) {
  state.length = begin;
  state.used = begin;
}

void Heap::follow(const HeapState& state) {
  if (mapping_->bytes() < state.length) mapping_ = segment_.map();
}

HeapOffset Heap::extend(HeapState& state, std::int64_t bytes, std::int64_t filled) {
  const HeapOffset begin = state.used;
  if (const HeapOffset end = begin + bytes; end > state.length) {
    const std::int64_t length = std::max(end, 2 * state.length);
    segment_.resize(length);
    state.length = length;
    follow(state);
  }
  fill(begin, filled);
  state.used = begin + bytes;
  return begin;
}

HeapOffset Heap::allocate(HeapState& state, std::int64_t bytes) {
  const std::size_t size_class = smallest_class_of(bytes);
  HeapOffset& first = state.free[size_class];
  if (first != 0) return std::exchange(first, block(first).next);
  const std::int64_t length = length_of(size_class);
  HeapOffset offset = 0;
  if (is_long(length)) {
    offset = extend(state, on_pages(length), page_size());
  } else {
    if (state.room_end - state.room < length) {
      check_room(kChunk);
      state.room = extend(state, kChunk, kChunk);
      state.room_end = state.room + kChunk;
    }
    offset = state.room;
    state.room += length;
  }
  block(offset).size_class = static_cast<std::int64_t>(size_class);
  return offset;
}

void Heap::free(HeapState& state, HeapOffset offset) {
  HeapBlock& freed = block(offset);
  HeapOffset& first = state.free[static_cast<std::size_t>(freed.size_class)];
  freed.next = first;
  first = offset;
}

/** More than the machine has would not end in an error, but with the kernel killing a process.
 * Little is not worth the question. */
void Heap::check_room(std::int64_t bytes) {
  if (bytes < kChunk) return;
  const AvailableMemory available = available_memory();
  if (!available.fits(bytes, 1)) throw SystemError(available.describe(), ENOMEM);
}

void Heap::fill(HeapOffset block, std::int64_t bytes) const {
  segment_.reserve(block, on_pages(bytes));
}

void Heap::empty(HeapOffset block, std::int64_t bytes) const noexcept {
  const std::int64_t page = page_size();
  segment_.give_back(block + page, on_pages(bytes) - page);
}

}  // namespace tutti::shm
