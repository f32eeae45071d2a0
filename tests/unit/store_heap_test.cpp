// The heap of a store: what is freed is used again, and long blocks give their memory back.
#include "comm/shm/store/heap.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tutti/unique_id.hpp"

namespace tutti::shm {
namespace {

class StoreHeap : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBegin = 64 << 10;

  StoreHeap() : name_(segment_name(UniqueId::create(), "heap test")), guard_(name_) {
    Segment segment = Segment::create(name_);
    segment.reserve(0, kBegin);
    heap_.emplace(std::move(segment));
    Heap::initialise(state_, kBegin);
  }

  HeapOffset take(std::int64_t bytes) {
    const HeapOffset offset = heap_->allocate(state_, bytes);
    if (Heap::is_long(bytes)) heap_->fill(offset, bytes);
    // All of it can be written, but for what the heap needs itself.
    auto* const begin = reinterpret_cast<std::byte*>(&heap_->block(offset));
    const auto header = static_cast<std::int64_t>(sizeof(HeapBlock));
    if (bytes > header) std::memset(begin + header, 0xA5, static_cast<std::size_t>(bytes - header));
    return offset;
  }
  void give(HeapOffset offset, std::int64_t bytes) {
    if (Heap::is_long(bytes)) heap_->empty(offset, bytes);
    heap_->free(state_, offset);
  }
  /** What the segment takes of the machine's memory. */
  std::int64_t resident() const {
    struct stat status {};
    EXPECT_EQ(::stat(("/dev/shm" + name_).c_str(), &status), 0);
    return status.st_blocks * 512;
  }

  std::string name_;
  NameGuard guard_;
  std::optional<Heap> heap_;
  HeapState state_{};
};

TEST_F(StoreHeap, BlocksAreApartAndLongEnough) {
  struct Taken {
    HeapOffset begin;
    HeapOffset end;
  };
  std::vector<Taken> taken;
  for (const std::int64_t bytes : {1, 16, 48, 127, 128, 129, 160, 161, 4096, 5000, 131'071, 131'072,
                                   131'073, 163'840, 163'841, 1 << 20, (1 << 20) + 1, 5'000'000}) {
    for (int i = 0; i < 3; ++i) {
      const HeapOffset offset = take(bytes);
      EXPECT_EQ(offset % 32, 0);
      taken.push_back({offset, offset + bytes});
    }
  }
  std::sort(taken.begin(), taken.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  EXPECT_GE(taken.front().begin, kBegin);
  for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].end, taken[i].begin);
}

TEST_F(StoreHeap, WhatIsFreedIsUsedAgain) {
  for (const std::int64_t bytes : {100, 3000, 131'072, 131'073, 3'000'000}) {
    const HeapOffset first = take(bytes);
    const HeapOffset used = state_.used;
    HeapOffset offset = first;
    for (int i = 0; i < 100; ++i) {
      give(offset, bytes);
      offset = take(bytes);
      EXPECT_EQ(offset, first);
    }
    EXPECT_EQ(state_.used, used);
  }
}

TEST_F(StoreHeap, ManyOfAllLengthsDoNotAddUp) {
  std::mt19937 random(1);
  const auto round = [&] {
    std::vector<std::pair<HeapOffset, std::int64_t>> taken;
    for (int i = 0; i < 2000; ++i) {
      const auto bytes = static_cast<std::int64_t>(1 + random() % (i % 10 == 0 ? 200'000 : 2000));
      taken.emplace_back(take(bytes), bytes);
    }
    std::shuffle(taken.begin(), taken.end(), random);
    for (const auto& [offset, bytes] : taken) give(offset, bytes);
  };
  round();
  const std::int64_t first = resident();
  for (int i = 0; i < 5; ++i) round();
  EXPECT_LT(resident(), 2 * first);
}

TEST_F(StoreHeap, LongBlocksGiveTheirMemoryBack) {
  const std::int64_t before = resident();
  constexpr std::int64_t kBytes = 20'000'000;
  const HeapOffset offset = take(kBytes);
  EXPECT_GE(resident() - before, kBytes);
  EXPECT_LT(resident() - before, kBytes + (1 << 20));
  give(offset, kBytes);
  EXPECT_LT(resident() - before, 64 << 10);
  EXPECT_EQ(take(kBytes - 5), offset);
}

}  // namespace
}  // namespace tutti::shm
