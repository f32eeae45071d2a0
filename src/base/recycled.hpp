// Memory for small objects of which a few are always under way, without asking the system again.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <utility>
#include <vector>

namespace tutti {

/** A block of at least `bytes` bytes: one that was given back, or else a new one. Thread-safe. */
void* take_block(std::size_t bytes);
/** Keeps a block of take_block(bytes) for the next one who asks. */
void give_block(void* memory, std::size_t bytes) noexcept;

/** For containers and std::allocate_shared. */
template <class T>
struct RecyclingAllocator {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard's name
  static_assert(alignof(T) <= alignof(std::max_align_t));

  RecyclingAllocator() = default;
  template <class U>
  RecyclingAllocator(const RecyclingAllocator<U>&) {}

  // T may be a pointer. NOLINTBEGIN(bugprone-sizeof-expression)
  T* allocate(std::size_t count) { return static_cast<T*>(take_block(count * sizeof(T))); }
  void deallocate(T* block, std::size_t count) noexcept { give_block(block, count * sizeof(T)); }
  // NOLINTEND(bugprone-sizeof-expression)
  friend bool operator==(const RecyclingAllocator&, const RecyclingAllocator&) { return true; }
};

template <class T>
using RecycledVector = std::vector<T, RecyclingAllocator<T>>;

/** The same blocks for containers of std::pmr. */
std::pmr::memory_resource& recycled_memory();

/** A function object that a std::function keeps in a recycled block. */
template <class Function>
class Recycled {
 public:
  explicit Recycled(Function function) : function_(std::move(function)) {}
  void operator()() { function_(); }

  // The sized form belongs to it. NOLINTNEXTLINE(misc-new-delete-overloads)
  static void* operator new(std::size_t bytes) { return take_block(bytes); }
  static void operator delete(void* block, std::size_t bytes) { give_block(block, bytes); }

 private:
  static_assert(alignof(Function) <= alignof(std::max_align_t));
  Function function_;
};

}  // namespace tutti
