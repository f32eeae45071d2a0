// Symmetric memory: zeros, lifetime, many allocations, and every mix of places in one collective.
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/available_memory.hpp"
#include "support/data.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Allocate : public RankTest {};

TEST_F(Allocate, GivesZerosThatAreThisRanksOwn) {
  on_ranks([](Communicator& comm) {
    for (const std::int64_t bytes : {1, 63, 4096, 4097, 5 << 20}) {
      Buffer buffer = comm.allocate(bytes);
      ASSERT_EQ(buffer.bytes(), bytes);
      const std::span<std::uint8_t> mine = buffer.as<std::uint8_t>();
      EXPECT_TRUE(std::all_of(mine.begin(), mine.end(), [](auto byte) { return byte == 0; }));
      // Aligned for any vector instruction.
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
      comm.barrier();
      std::fill(mine.begin(), mine.end(), static_cast<std::uint8_t>(comm.global_rank() + 1));
      comm.barrier();
      EXPECT_TRUE(std::all_of(mine.begin(), mine.end(),
                              [&](auto byte) { return byte == comm.global_rank() + 1; }));
    }
  });
}

TEST_F(Allocate, ReusedMemoryIsZeroAgain) {
  on_ranks([](Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      Buffer buffer = comm.allocate(100'000);
      const std::span<std::uint8_t> mine = buffer.as<std::uint8_t>();
      ASSERT_TRUE(std::all_of(mine.begin(), mine.end(), [](auto byte) { return byte == 0; }));
      std::fill(mine.begin(), mine.end(), std::uint8_t{0xFF});
    }
  });
}

TEST_F(Allocate, NothingIsAnEmptyBuffer) {
  on_ranks([](Communicator& comm) {
    Buffer buffer = comm.allocate(0);
    EXPECT_EQ(buffer.bytes(), 0);
    comm.barrier();
  });
}

TEST_F(Allocate, OutlivesTheCommunicator) {
  std::vector<Buffer> buffers(static_cast<std::size_t>(ranks()));
  on_ranks([&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    buffers[rank] = comm.allocate(1 << 20);
    std::fill_n(buffers[rank].as<std::int32_t>().data(), 1 << 18, comm.global_rank() + 5);
    comm.all_reduce(View(buffers[rank].as<std::int32_t>()));
  });
  const std::int32_t expected = ranks() * (ranks() - 1) / 2 + 5 * ranks();
  for (Buffer& buffer : buffers) {
    for (const std::int32_t value : buffer.as<std::int32_t>()) ASSERT_EQ(value, expected);
    buffer = Buffer();
  }
}

TEST_F(Allocate, AnotherCommunicatorTakesItForOrdinaryMemory) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> other = comm.split(0, -comm.global_rank());
    Buffer buffer = other->allocate(400'000);
    const std::span<float> data = buffer.as<float>();
    std::fill(data.begin(), data.end(), 1.0F);
    comm.all_reduce(View(data));
    for (const float value : data) ASSERT_EQ(value, static_cast<float>(ranks()));
  });
}

/** Every rank picks its places by its own rule; only the numbers are the same everywhere. */
TEST_F(Allocate, AnyMixOfAllocationsAndOffsetsGivesTheSameNumbers) {
  on_ranks([](Communicator& comm) {
    constexpr std::int64_t kBytes = 1 << 21;
    std::vector<Buffer> buffers;
    for (int i = 0; i < 4; ++i) buffers.push_back(comm.allocate(kBytes));
    std::vector<std::byte> ordinary(kBytes);
    const int rank = comm.global_rank();
    for (int round = 0; round < 120; ++round) {
      const std::int64_t count = round % 3 == 0 ? 100'000 : round % 3 == 1 ? 5000 : 33;
      const auto place = [&](int salt) {
        // In every other round only the last rank goes its own way.
        const int own = round % 2 == 0 || rank == ranks() - 1 ? rank : 0;
        const int pick = (round / 2 + own * (salt + 1) + salt) % 5;
        const std::int64_t offset =
            (round / 3 * 7 + own * 3 + salt * 150'000) % 300'000 * std::int64_t{4};
        std::byte* base =
            pick == 4 ? ordinary.data()
                      : static_cast<std::byte*>(buffers[static_cast<std::size_t>(pick)].data());
        return View(base + offset, count, DType::i32);
      };
      const View in = place(0);
      const View out = place(1);
      // Overlapping arguments are refused, so such places are used in place.
      const auto* in_begin = static_cast<const std::byte*>(in.data);
      const auto* out_begin = static_cast<const std::byte*>(out.data);
      const bool overlap = in_begin < out_begin + out.bytes() && out_begin < in_begin + in.bytes();
      const View result = overlap ? in : out;
      SCOPED_TRACE("round " + std::to_string(round));
      fill(in, [&](std::int64_t i) { return contribution(DType::i32, ReduceKind::sum, rank, i); });
      const int root = round % ranks();
      if (round % 4 < 2) {
        comm.all_reduce(in, result);
        ASSERT_TRUE(holds(
            result, [&](std::int64_t i) { return reduced(DType::i32, Reduce::sum, ranks(), i); }));
      } else if (round % 4 == 2) {
        comm.broadcast(in, result, root);
        ASSERT_TRUE(holds(result, [&](std::int64_t i) {
          return contribution(DType::i32, ReduceKind::sum, root, i);
        }));
      } else {
        comm.reduce(in, result, root);
        if (rank == root) {
          ASSERT_TRUE(holds(result, [&](std::int64_t i) {
            return reduced(DType::i32, Reduce::sum, ranks(), i);
          }));
        }
      }
    }
  });
}

TEST_F(Allocate, ManyAtOnceAndReleasedInAnyOrder) {
  on_ranks([](Communicator& comm) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 100; ++i) {
      buffers.push_back(comm.allocate(1000 + i));
      // Each rank lets go of another one: releasing is not collective.
      const int released = (i + comm.global_rank()) % (i + 1);
      if (i % 3 == 2) buffers[static_cast<std::size_t>(released)] = Buffer();
    }
    Buffer last = comm.allocate(4000);
    const std::span<float> data = last.as<float>();
    std::fill(data.begin(), data.end(), 2.0F);
    comm.all_reduce(View(data));
    for (const float value : data) ASSERT_EQ(value, 2.0F * static_cast<float>(ranks()));
  });
}

TEST_F(Allocate, MoreThanThereIsIsAnErrorWithTheSizesOnEveryRank) {
  struct statvfs room {};
  ASSERT_EQ(::statvfs("/dev/shm", &room), 0);
  const auto all = static_cast<std::int64_t>(room.f_blocks * room.f_frsize);
  if (all == 0) GTEST_SKIP() << "/dev/shm has no limit";
  on_ranks([&](Communicator& comm) {
    try {
      const Buffer buffer = comm.allocate(2 * all);
      ADD_FAILURE() << "got " << buffer.bytes() << " bytes";
    } catch (const SystemError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("bytes of shared memory"), std::string::npos) << what;
      EXPECT_NE(what.find("bytes free"), std::string::npos) << what;
      EXPECT_NE(error.error_number(), 0);
    }
    // No harm is done.
    Buffer buffer = comm.allocate(4000);
    comm.all_reduce(View(buffer.as<float>()));
  });
}

TEST_F(Allocate, MoreThanThereIsForAllRanksTogetherIsRefusedBeforeAnyReserves) {
  if (!world().one_host()) {
    GTEST_SKIP() << "pretended hosts each take the machine's memory for theirs";
  }
  on_ranks([&](Communicator& comm) {
    const AvailableMemory room = available_memory();
    std::int64_t least = std::min(room.directory, room.memory);
    comm.broadcast(View(&least, 1, DType::i64), 0);
    // Other tests take memory and give it back meanwhile: each alone would nearly fit, two would
    // not at all.
    const std::int64_t part = comm.world_size() == 1 ? 2 * least : least / 10 * 9;
    try {
      const Buffer buffer = comm.allocate(part);
      ADD_FAILURE() << "got " << buffer.bytes() << " bytes";
    } catch (const SystemError& error) {
      // Memory that was reserved and did not suffice would be another error.
      const std::string what = error.what();
      const std::string sizes = std::to_string(part) + " bytes of shared memory on each of " +
                                std::to_string(comm.world_size()) + " ranks";
      EXPECT_NE(what.find(sizes), std::string::npos) << what;
      EXPECT_NE(what.find("bytes free, the machine "), std::string::npos) << what;
      EXPECT_EQ(error.error_number(), ENOMEM);
    }
    comm.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
