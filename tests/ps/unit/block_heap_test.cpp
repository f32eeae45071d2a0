// Memory for payloads: what free blocks keep of it, and what the machine does not have.
#include "ps/link/block_heap.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "own_mounts.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kHeader = 4096;

/** Pages that the object holds, in bytes. */
std::int64_t held_by(const BlockHeap& heap) {
  struct stat status {};
  const std::string name = heap.name().substr(heap.name().find_first_not_of('/'));
  EXPECT_EQ(::stat(("/dev/shm/" + name).c_str(), &status), 0) << name;
  return status.st_blocks * 512;
}

TEST(PsBlockHeap, AFreeBlockKeepsItsPagesUnlessThereAreManyOfThem) {
  BlockHeap heap(kHeader, 5 * kMiB);
  std::vector<std::int64_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(heap.take(2 * kMiB));
  EXPECT_GE(held_by(heap), 8 * kMiB);
  for (const std::int64_t block : blocks) heap.give(block);
  EXPECT_GE(held_by(heap), 4 * kMiB);
  EXPECT_LT(held_by(heap), 5 * kMiB);

  heap.give(heap.take(64 * kMiB));
  EXPECT_LT(held_by(heap), 5 * kMiB);
}

TEST(PsBlockHeap, WhatHasBeenGivenBackIsReservedAgain) {
  BlockHeap heap(kHeader, 0);
  for (const std::int64_t bytes : {3 * kMiB, 2 * kMiB + 1, 3 * kMiB}) {
    const std::int64_t block = heap.take(bytes);
    EXPECT_GE(held_by(heap), bytes);
    EXPECT_LT(held_by(heap), bytes + kMiB);
    std::ranges::fill(heap.memory_of(block, bytes), std::byte{1});
    heap.give(block);
    EXPECT_LT(held_by(heap), kMiB);
  }
}

std::string exceed_the_machine() {
  constexpr std::int64_t kMuch = 262'144;
  const MemoryFigure memory(kMuch);
  BlockHeap heap(1 << 16);
  const std::int64_t first = heap.take(kMiB);
  memory.say(1'000);
  try {
    for (int blocks = 0; blocks < 100; ++blocks) heap.take(kMiB);
    return "more was taken than there is";
  } catch (const SystemError& error) {
    const std::string text = error.what();
    if (text.find(" 1024000 bytes") == std::string::npos) return "no sizes: " + text;
  }
  heap.give(first);
  if (heap.take(kMiB / 4 * 3) != first) return "a free block is not used again";
  memory.say(kMuch);
  heap.take(kMiB);
  return "";
}

TEST(PsBlockHeap, TakesNoMoreThanTheMachineHas) { check_in_process(exceed_the_machine); }

}  // namespace
}  // namespace tutti::ps::test
