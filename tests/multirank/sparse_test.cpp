// sparse_all_reduce: every pattern of indices, the order of additions, and what the statistics say.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "support/memory.hpp"
#include "support/sparse.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

/** Nothing, a few, around a cache line, and more than is staged or packed at once. */
constexpr std::int64_t kCounts[] = {0, 1, 3, 63, 64, 65, 1000, 70'001, 400'003};

class SparseSum : public RankTest, public ::testing::WithParamInterface<SparsePattern> {};

INSTANTIATE_TEST_SUITE_P(Patterns, SparseSum, ::testing::ValuesIn(kPatterns),
                         [](const auto& test) { return name_of(test.param); });

::testing::AssertionResult same_bits(const ConstView& actual, const std::vector<float>& expected) {
  const auto* elements = static_cast<const float*>(actual.data);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(elements[i]) == std::bit_cast<std::uint32_t>(expected[i])) {
      continue;
    }
    return ::testing::AssertionFailure() << "element " << i << " of " << expected.size() << " is "
                                         << elements[i] << " instead of " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

TEST_P(SparseSum, AddsInTheDocumentedOrder) {
  on_ranks([](Communicator& comm) {
    Arena arena(comm, kCounts[std::size(kCounts) - 1] * 4);
    for (const std::int64_t count : kCounts) {
      const Sparse mine = sparse_data(GetParam(), comm.global_rank(), count);
      for (const Memory memory : {Memory::ordinary, Memory::symmetric}) {
        for (const Reduce reduce : {Reduce::sum, Reduce::average}) {
          SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
          const View out = arena.output(memory, count, DType::f32);
          SparseStats stats;
          comm.sparse_all_reduce(mine.view(), out, reduce, {}, &stats);
          const std::vector<float> expected = sparse_sum(GetParam(), count, reduce, world().hosts);
          ASSERT_TRUE(same_bits(out, expected));
          ASSERT_TRUE(arena.guards_intact());
          const std::int64_t entries = count - std::count(expected.begin(), expected.end(), 0.0F);
          EXPECT_EQ(stats.entries, entries);
          EXPECT_EQ(stats.density,
                    count == 0 ? 0.0 : static_cast<double>(entries) / static_cast<double>(count));
          EXPECT_EQ(stats.algorithm == SparseAlgorithm::none, world().one_host());
          EXPECT_LE(stats.bytes_between, stats.bytes_sent);
        }
      }
    }
  });
}

/** With what TUTTI_SPARSE asks for. */
class ForcedSparse : public RankTest, public ::testing::WithParamInterface<SparseAlgorithm> {
 protected:
  void SetUp() override { ::setenv("TUTTI_SPARSE", std::string(name_of(GetParam())).c_str(), 1); }
  void TearDown() override { ::unsetenv("TUTTI_SPARSE"); }
};

INSTANTIATE_TEST_SUITE_P(Algorithms, ForcedSparse,
                         ::testing::Values(SparseAlgorithm::gather, SparseAlgorithm::split,
                                           SparseAlgorithm::dense),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(ForcedSparse, GivesTheSameBits) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  on_ranks([](Communicator& comm) {
    for (const std::int64_t count : kCounts) {
      for (const SparsePattern pattern : kPatterns) {
        SCOPED_TRACE(name_of(pattern) + ", count " + std::to_string(count));
        const Sparse mine = sparse_data(pattern, comm.global_rank(), count);
        std::vector<float> out(static_cast<std::size_t>(count), 5.0F);
        SparseStats stats;
        comm.sparse_all_reduce(mine.view(), View(std::span(out)), Reduce::average, {}, &stats);
        ASSERT_TRUE(same_bits(View(std::span(out)),
                              sparse_sum(pattern, count, Reduce::average, world().hosts)));
        EXPECT_EQ(stats.algorithm, GetParam());
      }
    }
  });
}

class SparseCalls : public RankTest {};

TEST_F(SparseCalls, SendFewBytesBetweenHosts) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  on_ranks([](Communicator& comm) {
    constexpr std::int64_t kCount = 1'000'000;
    const Sparse mine = sparse_data(SparsePattern::scattered, comm.global_rank(), kCount);
    std::vector<float> out(kCount);
    SparseStats stats;
    comm.sparse_all_reduce(mine.view(), View(std::span(out)), {}, {}, &stats);
    const auto& hosts = world().hosts;
    const auto here =
        std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(comm.global_rank())]);
    if (comm.local_rank() != 0) {
      EXPECT_EQ(stats.bytes_between, 0);
    } else {
      // 2 % of a rank, which may all be elsewhere than its neighbours', to each other host.
      const auto others = static_cast<double>(std::set<int>(hosts.begin(), hosts.end()).size() - 1);
      const double entries = static_cast<double>(here) * 0.02 * static_cast<double>(kCount);
      EXPECT_LT(static_cast<double>(stats.bytes_between), 1.1 * others * entries * 5.1);
      EXPECT_GT(static_cast<double>(stats.bytes_between), 0.9 * others * entries * 4.9);
    }
  });
}

TEST_F(SparseCalls, ANaNOfAnyRankIsTheQuietNaNOnAllRanks) {
  on_ranks([](Communicator& comm) {
    for (int who = 0; who < ranks(); ++who) {
      const auto payload = std::bit_cast<float>(0xFFC12345U);
      const std::uint32_t index = 7;
      const float value = who == comm.global_rank() ? payload : 1.0F;
      std::vector<float> out(100, 3.0F);
      comm.sparse_all_reduce({&index, &value, 1}, View(std::span(out)));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[7]), 0x7FC00000U);
      out[7] = 0.0F;
      EXPECT_EQ(out, std::vector<float>(100));
    }
  });
}

TEST_F(SparseCalls, InfinitiesOfBothSignsAddUpToNaN) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::uint32_t indices[] = {1, 2};
    const float values[] = {infinity, comm.global_rank() == 0 ? infinity : -infinity};
    std::vector<float> out(4);
    comm.sparse_all_reduce({indices, values, 2}, View(std::span(out)), Reduce::average);
    EXPECT_EQ(out[1], infinity);
    EXPECT_NE(out[2], out[2]);
  });
}

TEST_F(SparseCalls, RunOnAWorkerStreamOneAfterTheOther) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    constexpr std::int64_t kCount = 50'000;
    const Sparse first = sparse_data(SparsePattern::scattered, comm.global_rank(), kCount);
    const Sparse second = sparse_data(SparsePattern::common, comm.global_rank(), kCount);
    std::vector<float> outs[2];
    SparseStats stats[2];
    for (auto& out : outs) out.resize(kCount);
    comm.sparse_all_reduce(first.view(), View(std::span(outs[0])), Reduce::sum, stream, &stats[0]);
    const Event event = comm.sparse_all_reduce(second.view(), View(std::span(outs[1])),
                                               Reduce::average, stream, &stats[1]);
    std::vector<float> dense(1000, 1.0F);
    comm.all_reduce(View(std::span(dense)));
    event.wait();
    const auto& hosts = world().hosts;
    EXPECT_EQ(outs[0], sparse_sum(SparsePattern::scattered, kCount, Reduce::sum, hosts));
    EXPECT_EQ(outs[1], sparse_sum(SparsePattern::common, kCount, Reduce::average, hosts));
    EXPECT_EQ(dense, std::vector<float>(1000, static_cast<float>(ranks())));
    EXPECT_GT(stats[0].entries, 0);
    EXPECT_GT(stats[1].entries, 0);
  });
}

TEST_F(SparseCalls, OfManySizesInTurnDoNotMixUp) {
  on_ranks([](Communicator& comm) {
    std::vector<float> out(20'000);
    for (std::int64_t count = 1; count <= 20'000; count = count * 5 / 3 + 1) {
      for (const SparsePattern pattern : kPatterns) {
        const Sparse mine = sparse_data(pattern, comm.global_rank(), count);
        const View view(out.data(), count, DType::f32);
        comm.sparse_all_reduce(mine.view(), view);
        ASSERT_TRUE(same_bits(view, sparse_sum(pattern, count, {}, world().hosts)))
            << name_of(pattern) << ", count " << count;
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
