// Stores past the caches: the same bytes as plain ones, at every address and length.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/reduction.hpp"
#include "support/data.hpp"

namespace tutti::cpu {
namespace {

constexpr std::byte kMark{0xA5};
constexpr std::int64_t kRoom = 20'000;

/** Bytes that start on a cache line, with guards around what is used of them. */
struct alignas(64) Block {
  std::byte bytes[kRoom];

  Block() { std::memset(bytes, static_cast<int>(kMark), sizeof bytes); }
  std::byte* at(std::int64_t offset) { return bytes + 64 + offset; }
  bool marked_outside(std::int64_t offset, std::int64_t length) const {
    for (std::int64_t i = 0; i < kRoom; ++i) {
      const bool inside = i >= 64 + offset && i < 64 + offset + length;
      if (!inside && bytes[i] != kMark) return false;
    }
    return true;
  }
};

TEST(StreamedStores, GiveTheBytesOfPlainOnes) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (find_table(isa) == nullptr) continue;
    for (const DType dtype : test::kDTypes) {
      for (const std::int64_t count : {1, 31, 64, 65, 127, 128, 129, 1000, 2049}) {
        const std::int64_t bytes = count * size_of(dtype);
        std::vector<std::vector<std::byte>> ins(
            3, std::vector<std::byte>(static_cast<std::size_t>(bytes)));
        std::vector<const void*> sources;
        for (int rank = 0; rank < 3; ++rank) {
          auto& in = ins[static_cast<std::size_t>(rank)];
          test::fill(View(in.data(), count, dtype), [&](std::int64_t i) {
            return test::contribution(dtype, ReduceKind::max, rank, i);
          });
          sources.push_back(in.data());
        }
        // Two outputs on a line, or one of them off it; the first or none of three is plain.
        for (const std::int64_t offset : {0, 8}) {
          for (const std::int64_t plain : {0, 1}) {
            SCOPED_TRACE(std::string(name_of(isa)) + " " + std::string(name_of(dtype)) + " " +
                         std::to_string(count) + ", offset " + std::to_string(offset) + ", " +
                         std::to_string(plain) + " plain");
            std::vector<Block> outs(3);
            const std::vector<void*> targets{outs[0].at(8), outs[1].at(0), outs[2].at(offset)};
            reduce(table(isa), targets, sources, count, dtype, {ReduceKind::max}, {plain});
            for (void* target : targets) {
              ASSERT_TRUE(test::holds(ConstView(target, count, dtype), [&](std::int64_t i) {
                return test::reduced(dtype, ReduceKind::max, 3, i);
              }));
            }
            ASSERT_TRUE(outs[0].marked_outside(8, bytes));
            ASSERT_TRUE(outs[1].marked_outside(0, bytes));
            ASSERT_TRUE(outs[2].marked_outside(offset, bytes));
          }
        }
      }
    }
  }
}

TEST(StreamedStores, MayOverwriteAnInput) {
  std::vector<Block> data(2);
  constexpr std::int64_t kCount = 4001;
  for (int rank = 0; rank < 2; ++rank) {
    test::fill(View(data[static_cast<std::size_t>(rank)].at(0), kCount, DType::f32),
               [&](std::int64_t i) { return static_cast<double>(rank + i); });
  }
  const std::vector<void*> outs{data[0].at(0), data[1].at(0)};
  const std::vector<const void*> ins(outs.begin(), outs.end());
  reduce(outs, ins, kCount, DType::f32, {}, {1});
  for (void* out : outs) {
    EXPECT_TRUE(test::holds(ConstView(out, kCount, DType::f32),
                            [](std::int64_t i) { return static_cast<double>(2 * i + 1); }));
  }
}

TEST(StreamedStores, CopiesAreExactAtEveryAddressAndLength) {
  Block from;
  for (std::int64_t i = 0; i < kRoom; ++i) {
    from.bytes[i] = static_cast<std::byte>(i * 7 % 251);
  }
  for (const bool streamed : {false, true}) {
    for (const std::int64_t offset : {0, 1, 4, 63}) {
      for (const std::int64_t length : {0, 1, 63, 64, 65, 191, 192, 193, 1000, 16'384}) {
        Block to;
        copy(to.at(offset), from.at(3), length, streamed);
        ASSERT_EQ(std::memcmp(to.at(offset), from.at(3), static_cast<std::size_t>(length)), 0)
            << length << " bytes at " << offset;
        ASSERT_TRUE(to.marked_outside(offset, length)) << length << " bytes at " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::cpu
