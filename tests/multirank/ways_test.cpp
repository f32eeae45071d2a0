// Every way through shared memory, forced: the same bits, whatever the arguments lie in.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/shm/transport.hpp"
#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/rough.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

using shm::Choices;
using shm::Local;
using shm::ShmTransport;
using shm::Way;
using Kind = Way::Kind;

struct Forced {
  const char* name;
  Way way;
};

// Pieces of 4 KiB make small arguments go round the slots many times.
constexpr std::array<Forced, 10> kWays{{
    {"OneShot", {Kind::one_shot, false, 0}},
    {"OneShotStreamed", {Kind::one_shot, true, 0}},
    {"Direct", {Kind::direct, false, 0}},
    {"DirectStreamed", {Kind::direct, true, 0}},
    {"Staged", {Kind::staged, false, Choices::kPiece}},
    {"StagedStreamed", {Kind::staged, true, Choices::kPiece}},
    {"StagedSmallPieces", {Kind::staged, false, 4096}},
    {"StagedSmallPiecesStreamed", {Kind::staged, true, 4096}},
    {"SingleCopy", {Kind::single_copy, false, Choices::kPiece}},
    {"SingleCopySmallPieces", {Kind::single_copy, false, 4096}},
}};

class Ways : public RankTest, public ::testing::WithParamInterface<Forced> {
 protected:
  /** Elements of a contribution: around one line, one shot, a piece, and several pieces. */
  static constexpr std::array<std::int64_t, 8> kCounts{15,     16,     1000,   4097,
                                                       16'384, 16'385, 65'537, 200'003};

  /** Runs body(communicator, local) where everything goes the way of this test. */
  template <class Body>
  void on_forced(const Body& body) {
    if (!world().one_host()) GTEST_SKIP() << "needs one host";
    on_ranks([&](Communicator& whole) {
      std::vector<int> names(static_cast<std::size_t>(ranks()));
      std::iota(names.begin(), names.end(), 0);
      auto transport = std::make_unique<ShmTransport>(agree_on_ticket(whole), whole.global_rank(),
                                                      std::move(names), std::chrono::seconds(20));
      Local& forced = transport->local();
      Communicator comm(std::move(transport));
      comm.barrier();  // from here on the ranks can look into each other's memory
      forced.force(GetParam().way);
      if (GetParam().way.kind == Kind::single_copy && !forced.reaches_all()) {
        GTEST_SKIP() << "no rights to read other processes' memory here";
      }
      body(comm, forced);
    });
  }

  /** Whether the last call went the way that was forced, if that was possible. */
  static ::testing::AssertionResult went(const Local& local, std::int64_t bytes,
                                         bool direct_possible) {
    const Way& way = GetParam().way;
    bool possible = true;
    if (way.kind == Kind::one_shot) possible = bytes <= Choices::kOneShot;
    if (way.kind == Kind::direct) possible = direct_possible;
    if (way.kind == Kind::single_copy) possible = bytes >= 65'536;
    if (!possible || local.last_way() == way) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "went another way";
  }
};

INSTANTIATE_TEST_SUITE_P(Forced, Ways, ::testing::ValuesIn(kWays),
                         [](const auto& test) { return std::string(test.param.name); });

constexpr bool all_symmetric(Memory memory) {
  return memory == Memory::symmetric || memory == Memory::staggered;
}

TEST_P(Ways, ReductionsAddInTheOrderOfTheRanks) {
  on_forced([](Communicator& comm, const Local& local) {
    const int rank = comm.global_rank();
    Arena arena(comm, 4 * kCounts.back());
    const std::vector<float> mine = rough<float>(rank, kCounts.back());
    const std::vector<float> sum = sum_in_order<float>(kCounts.back(), 1);
    for (const std::int64_t count : kCounts) {
      const int root = static_cast<int>(count) % ranks();
      const std::int64_t part = count / ranks();
      for (const Memory memory : kMemories) {
        SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
        const View in = arena.input(memory, count, DType::f32);
        const View out = arena.output(memory, count, DType::f32);
        std::memcpy(in.data, mine.data(), static_cast<std::size_t>(in.bytes()));
        comm.all_reduce(in, out);
        ASSERT_TRUE(same_bits(out, sum.data())) << "all_reduce";
        ASSERT_TRUE(went(local, in.bytes(), all_symmetric(memory))) << "all_reduce";
        ASSERT_TRUE(same_bits(in, mine.data())) << "all_reduce wrote its input";
        comm.reduce(in, out, root);
        if (rank == root) {
          ASSERT_TRUE(same_bits(out, sum.data())) << "reduce";
        }
        ASSERT_TRUE(went(local, in.bytes(), all_symmetric(memory))) << "reduce";
        const View whole = in.part(0, part * ranks());
        comm.reduce_scatter(whole, out.part(0, part));
        ASSERT_TRUE(same_bits(out.part(0, part), sum.data() + rank * part)) << "reduce_scatter";
        comm.all_reduce(in);
        ASSERT_TRUE(same_bits(in, sum.data())) << "all_reduce in place";
        ASSERT_TRUE(went(local, in.bytes(), all_symmetric(memory))) << "all_reduce in place";
        ASSERT_TRUE(arena.guards_intact());
      }
    }
  });
}

/** Of different lengths, some of them empty. */
TEST_P(Ways, BlocksAreReducedForTheirRanks) {
  on_forced([](Communicator& comm, Local& local) {
    const int rank = comm.global_rank();
    Arena arena(comm, 4 * kCounts.back());
    const std::vector<float> mine = rough<float>(rank, kCounts.back());
    const std::vector<float> sum = sum_in_order<float>(kCounts.back(), 1);
    for (const std::int64_t count : kCounts) {
      for (const int shortest : {0, ranks() - 1}) {  // has nothing
        std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()), 0);
        std::int64_t left = count;
        for (int block = 0; block < ranks() && ranks() > 1; ++block) {
          if (block == shortest) continue;
          const bool is_last =
              block == ranks() - 1 || (shortest == ranks() - 1 && block == ranks() - 2);
          counts[static_cast<std::size_t>(block)] = is_last ? left : left / 3;
          left -= counts[static_cast<std::size_t>(block)];
        }
        if (ranks() == 1) counts[0] = count;
        const std::int64_t before =
            std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
        const std::int64_t own = counts[static_cast<std::size_t>(rank)];
        for (const Memory memory : kMemories) {
          SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
          const View in = arena.input(memory, count, DType::f32);
          const View out = arena.output(memory, count, DType::f32);
          std::memcpy(in.data, mine.data(), static_cast<std::size_t>(in.bytes()));
          local.run(shm::Task::reduce_scatter(in, out.part(0, own), {}, counts));
          ASSERT_TRUE(same_bits(out.part(0, own), sum.data() + before));
          ASSERT_TRUE(went(local, in.bytes(), all_symmetric(memory)));
          ASSERT_TRUE(same_bits(in, mine.data())) << "an input was written";
          local.run(shm::Task::reduce_scatter(in, in.part(before, own), {}, counts));
          ASSERT_TRUE(same_bits(in.part(before, own), sum.data() + before)) << "in place";
          ASSERT_TRUE(arena.guards_intact());
          comm.barrier();  // all have read what is filled anew
        }
      }
    }
  });
}

TEST_P(Ways, SixteenBitSumsAreRoundedOnce) {
  on_forced([](Communicator& comm, const Local&) {
    Arena arena(comm, 2 * kCounts.back());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const std::int64_t count : kCounts) {
        for (const Memory memory : kMemories) {
          const View data = arena.input(memory, count, dtype);
          // 2048 and 256 are where the types lose the ones, and 1/3 stays inexact.
          const double large = dtype == DType::f16 ? 2048 : 256;
          fill(data, [&](std::int64_t i) {
            return comm.global_rank() == 0 ? large : static_cast<double>(i % 2);
          });
          comm.all_reduce(data);
          ASSERT_TRUE(holds(data,
                            [&](std::int64_t i) {
                              return static_cast<float>(
                                  large + static_cast<double>((ranks() - 1) * (i % 2)));
                            }))
              << name_of(dtype) << ", count " << count << ", " << name_of(memory);
          ASSERT_TRUE(arena.guards_intact());
        }
      }
    }
  });
}

TEST_P(Ways, MovementsBringEverythingToItsPlace) {
  on_forced([](Communicator& comm, const Local& local) {
    const int rank = comm.global_rank();
    const auto data_of = [](int from, std::int64_t first = 0) {
      return Contribution{DType::i32, ReduceKind::sum, from, first};
    };
    Arena arena(comm, std::int64_t{4} * ranks() * kCounts.back());
    for (const std::int64_t count : kCounts) {
      const int root = static_cast<int>(count) % ranks();
      for (const Memory memory : kMemories) {
        SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
        const Contribution mine = data_of(rank);
        const View in = arena.input(memory, ranks() * count, DType::i32);
        const View out = arena.output(memory, ranks() * count, DType::i32);
        fill(in, mine);
        comm.broadcast(in.part(0, count), out.part(0, count), root);
        ASSERT_TRUE(holds(out.part(0, count), data_of(root)));
        comm.all_gather(in.part(0, count), out);
        for (int from = 0; from < ranks(); ++from) {
          ASSERT_TRUE(holds(out.part(from * count, count), data_of(from))) << "all_gather";
        }
        ASSERT_TRUE(went(local, 4 * count, all_symmetric(memory))) << "all_gather";
        comm.all_to_all(in, out);
        for (int from = 0; from < ranks(); ++from) {
          ASSERT_TRUE(holds(out.part(from * count, count), data_of(from, rank * count)))
              << "all_to_all";
        }
        ASSERT_TRUE(went(local, 4 * count * ranks(), all_symmetric(memory))) << "all_to_all";
        ASSERT_TRUE(holds(in, mine)) << "an input was written";
        comm.all_to_all(in, in);
        ASSERT_TRUE(same_bits(in, out.data)) << "all_to_all in place";
        ASSERT_TRUE(arena.guards_intact());
      }
    }
  });
}

TEST_P(Ways, ManyInARowDoNotMix) {
  on_forced([](Communicator& comm, const Local&) {
    // Fast ranks run ahead of slow ones: memory that a slow one still reads must not be written.
    constexpr std::int64_t kCount = 12'000;
    const Buffer memory = comm.allocate(4 * kCount);
    std::vector<std::int32_t> own(static_cast<std::size_t>(kCount));
    for (int call = 0; call < 200; ++call) {
      // Longer and shorter ones in turn, through one line as well.
      const std::int64_t count = call % 4 == 3 ? 5 : kCount - std::int64_t{100} * (call % 7);
      const View view(call % 2 == 0 ? static_cast<void*>(own.data()) : memory.data(), count,
                      DType::i32);
      const auto value = [&](int rank, std::int64_t i) {
        return static_cast<double>(call + rank * 3 + i % 11);
      };
      fill(view, [&](std::int64_t i) { return value(comm.global_rank(), i); });
      comm.all_reduce(view);
      ASSERT_TRUE(holds(view,
                        [&](std::int64_t i) {
                          double sum = 0;
                          for (int rank = 0; rank < ranks(); ++rank) sum += value(rank, i);
                          return sum;
                        }))
          << "call " << call;
    }
  });
}

TEST_P(Ways, AMismatchIsFoundBeforeAnythingIsWritten) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_forced([](Communicator& comm, const Local&) {
    // One rank comes with a line, the others with what goes the forced way.
    const bool odd = comm.global_rank() == ranks() - 1;
    std::vector<float> data(odd ? 4 : 40'000, 1.0F);
    std::vector<float> out(data.size(), -1.0F);
    EXPECT_THROW(comm.all_reduce(View(std::span(data)), View(std::span(out))), MismatchError);
    EXPECT_EQ(out, std::vector<float>(data.size(), -1.0F));
  });
}

}  // namespace
}  // namespace tutti::test
