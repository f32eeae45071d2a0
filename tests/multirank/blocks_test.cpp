// Operations that move one block a rank, whose lengths may differ, and scans.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/data.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

constexpr std::array<DType, 3> kBlockDTypes{DType::f32, DType::i64, DType::boolean};
// Up to some pieces of what travels at once.
constexpr std::array<std::int64_t, 5> kBlockCounts{0, 1, 17, 5000, 150'001};

/** Memory of its own for `count` elements. */
class Elements {
 public:
  Elements(std::int64_t count, DType dtype)
      : bytes_(static_cast<std::size_t>(count * size_of(dtype))), count_(count), dtype_(dtype) {}
  View view() { return {bytes_.data(), count_, dtype_}; }

 private:
  std::vector<std::byte> bytes_;
  std::int64_t count_;
  DType dtype_;
};

/** The block from one rank to another. */
Contribution data_of(int from, int to) { return {DType::u8, ReduceKind::sum, 8 * from + to}; }

/** Blocks of `count` elements, or of fewer: the rank after `root` has none. */
std::vector<std::int64_t> uneven(std::int64_t count, int root, int ranks) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank == (root + 1) % ranks ? 0 : rank % 2 == 0 ? count : count / 2 + 1);
  }
  return counts;
}

std::int64_t start_of(const std::vector<std::int64_t>& counts, int rank) {
  std::int64_t start = 0;
  for (int before = 0; before < rank; ++before) start += counts[static_cast<std::size_t>(before)];
  return start;
}

std::int64_t total_of(const std::vector<std::int64_t>& counts) {
  return start_of(counts, static_cast<int>(counts.size()));
}

struct BlockCase {
  DType dtype;
  std::vector<std::int64_t> counts;
  bool even;  ///< called without counts
  bool in_place;
  int root;

  std::int64_t count(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  View block(const View& whole, int rank) const {
    return whole.part(start_of(counts, rank), count(rank));
  }
};

class BlocksTest : public RankTest {
 protected:
  /** Runs check(communicator, case) for every case. */
  template <class Check>
  void sweep(const Check& check) {
    on_ranks([&](Communicator& comm) {
      int turn = 0;
      for (const DType dtype : kBlockDTypes) {
        for (const std::int64_t count : kBlockCounts) {
          for (const bool even : {true, false}) {
            for (const bool in_place : {false, true}) {
              const int root = turn++ % ranks();
              const std::vector<std::int64_t> counts =
                  even ? std::vector<std::int64_t>(static_cast<std::size_t>(ranks()), count)
                       : uneven(count, root, ranks());
              SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(count) +
                           (even ? " each" : " at most") + (in_place ? ", in place" : "") +
                           ", root " + std::to_string(root));
              check(comm, BlockCase{dtype, counts, even, in_place, root});
              if (HasFailure()) return;
            }
          }
        }
      }
    });
  }
};

TEST_F(BlocksTest, AreGatheredByTheRoot) {
  sweep([](Communicator& comm, const BlockCase& c) {
    const int rank = comm.global_rank();
    const bool is_root = rank == c.root;
    Elements whole(is_root ? total_of(c.counts) : 0, c.dtype);
    Elements own(c.count(rank), c.dtype);
    const View in = c.in_place && is_root ? c.block(whole.view(), rank) : own.view();
    fill(in, data_of(rank, 0));
    if (c.even) {
      comm.gather(in, whole.view(), c.root);
    } else {
      comm.gather_v(in, whole.view(), c.counts, c.root);
    }
    for (int from = 0; is_root && from < ranks(); ++from) {
      EXPECT_TRUE(holds(c.block(whole.view(), from), data_of(from, 0))) << "from " << from;
    }
  });
}

TEST_F(BlocksTest, AreScatteredByTheRoot) {
  sweep([](Communicator& comm, const BlockCase& c) {
    const int rank = comm.global_rank();
    const bool is_root = rank == c.root;
    Elements whole(is_root ? total_of(c.counts) : 0, c.dtype);
    for (int to = 0; is_root && to < ranks(); ++to) {
      fill(c.block(whole.view(), to), data_of(0, to));
    }
    Elements own(c.count(rank), c.dtype);
    const View out = c.in_place && is_root ? c.block(whole.view(), rank) : own.view();
    if (c.even) {
      comm.scatter(whole.view(), out, c.root);
    } else {
      comm.scatter_v(whole.view(), out, c.counts, c.root);
    }
    EXPECT_TRUE(holds(out, data_of(0, rank)));
  });
}

TEST_F(BlocksTest, OfAReductionAreScattered) {
  sweep([](Communicator& comm, const BlockCase& c) {
    const int rank = comm.global_rank();
    for (const Reduce& reduce : reductions(c.dtype)) {
      if (c.counts.front() > 17 && reduce.kind != ReduceKind::max) continue;
      Elements whole(total_of(c.counts), c.dtype);
      fill(whole.view(), Contribution{c.dtype, reduce.kind, rank});
      Elements own(c.count(rank), c.dtype);
      const View out = c.in_place ? c.block(whole.view(), rank) : own.view();
      if (c.even) {
        comm.reduce_scatter(whole.view(), out, reduce);
      } else {
        comm.reduce_scatter_v(whole.view(), out, c.counts, reduce);
      }
      const Reduced results{c.dtype, reduce, ranks(), start_of(c.counts, rank)};
      EXPECT_TRUE(holds(out, results)) << name_of(reduce.kind);
    }
  });
}

TEST_F(BlocksTest, GoFromEveryRankToEveryOther) {
  sweep([](Communicator& comm, const BlockCase& c) {
    if (c.even || c.in_place) return;  // that is all_to_all, or refused
    const int rank = comm.global_rank();
    // Rank r sends counts[(r + s) % ranks] elements to rank s.
    const auto length = [&](int from, int to) { return c.count((from + to) % ranks()); };
    std::vector<std::int64_t> leaving;
    std::vector<std::int64_t> arriving;
    for (int peer = 0; peer < ranks(); ++peer) {
      leaving.push_back(length(rank, peer));
      arriving.push_back(length(peer, rank));
    }
    Elements in(total_of(leaving), c.dtype);
    Elements out(total_of(arriving), c.dtype);
    for (int to = 0; to < ranks(); ++to) {
      fill(in.view().part(start_of(leaving, to), length(rank, to)), data_of(rank, to));
    }
    comm.all_to_all_v(in.view(), leaving, out.view(), arriving);
    for (int from = 0; from < ranks(); ++from) {
      EXPECT_TRUE(
          holds(out.view().part(start_of(arriving, from), length(from, rank)), data_of(from, rank)))
          << "from " << from;
    }
  });
}

TEST_F(BlocksTest, ScansCombineTheRanksBefore) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    for (const DType dtype : kFewDTypes) {
      for (const Reduce& reduce : reductions(dtype)) {
        if (reduce.kind == ReduceKind::average) continue;
        for (const std::int64_t count : {0, 1, 17, 300'001}) {
          if (count > 17 && reduce.kind != ReduceKind::max) continue;
          const Contribution mine{dtype, reduce.kind, rank};
          SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(reduce.kind)));
          Elements in(count, dtype);
          Elements out(count, dtype);
          fill(in.view(), mine);
          comm.scan(in.view(), out.view(), reduce);
          ASSERT_TRUE(holds(out.view(), Reduced{dtype, reduce, rank + 1}));
          comm.exscan(in.view(), in.view(), reduce);  // in place
          ASSERT_TRUE(rank == 0 ? holds(in.view(), mine)
                                : holds(in.view(), Reduced{dtype, reduce, rank}));
        }
      }
    }
  });
}

TEST_F(BlocksTest, AScanIsRoundedOnce) {
  on_ranks([](Communicator& comm) {
    // 2048 + 1 is 2048 in f16, 2048 + 1 + 1 is not.
    const bool first = comm.global_rank() == 0;
    Half value = to_half(first ? 2048.0F : 1.0F);
    const View view(&value, 1, DType::f16);
    comm.scan(view, view);
    const int rank = comm.global_rank();
    EXPECT_EQ(to_float(value), rank < 2 ? 2048.0F : rank == 2 ? 2050.0F : 2052.0F);
  });
}

TEST_F(BlocksTest, RanksThatDoNotFitAreNamed) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  const auto names = [this](const auto& call, const std::vector<std::string>& words) {
    on_ranks([&](Communicator& comm) {
      try {
        call(comm);
        ADD_FAILURE() << "did not mismatch";
      } catch (const MismatchError& error) {
        for (const std::string& word : words) {
          EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
      }
    });
  };
  names(
      [](Communicator& comm) {
        // Rank 0 sends an element more to rank 1 than that expects.
        std::vector<std::int64_t> leaving(static_cast<std::size_t>(ranks()), 3);
        const std::vector<std::int64_t> arriving = leaving;
        if (comm.global_rank() == 0) leaving[1] = 4;
        Elements in(total_of(leaving), DType::i32);
        Elements out(total_of(arriving), DType::i32);
        comm.all_to_all_v(in.view(), leaving, out.view(), arriving);
      },
      {"rank 0 called all_to_all_v with 4 elements for rank 1, which expects 3 from it"});
  names(
      [](Communicator& comm) {
        Elements in(5 + comm.global_rank(), DType::i32);
        Elements out(std::int64_t{ranks()} * (5 + comm.global_rank()), DType::i32);
        comm.gather(in.view(), out.view(), 0);
      },
      {"rank 0: gather(i32, count 5, root 0)", "rank 1: gather(i32, count 6, root 0)"});
  names(
      [](Communicator& comm) {
        Elements in(5, DType::i32);
        if (comm.global_rank() == 0) {
          comm.scan(in.view(), in.view(), Reduce::bxor);
        } else {
          comm.exscan(in.view(), in.view(), Reduce::bxor);
        }
      },
      {"rank 0: scan(i32, count 5, bxor)", "exscan(i32, count 5, bxor)"});
}

TEST_F(BlocksTest, BadArgumentsAreRefusedByName) {
  on_ranks([](Communicator& comm) {
    Elements in(8, DType::i32);
    Elements other(8, DType::i32);
    const View a = in.view();
    const View b = other.view();
    const auto refused = [](const std::string& message, const auto& call) {
      try {
        call();
        ADD_FAILURE() << message;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()).find(message), 0U) << error.what();
      }
    };
    const std::vector<std::int64_t> none;
    const std::vector<std::int64_t> ones(static_cast<std::size_t>(ranks()), 1);
    refused("root is 9", [&] { comm.gather(a, b, 9); });
    refused("counts has 0 elements", [&] { comm.scatter_v(a, b, none, 0); });
    refused("in.count is 8, but must be 1: counts[global_rank]",
            [&] { comm.gather_v(a, b, ones, 0); });
    refused("out.count is 8, but must be 1: counts[global_rank]",
            [&] { comm.scatter_v(a, b, ones, 0); });
    refused("in.count is 8, but must be " + std::to_string(ranks()) + ": the sum of leaving",
            [&] { comm.all_to_all_v(a, ones, b, ones); });
    refused("reduce.kind is average", [&] { comm.scan(a, b, Reduce::average); });
    refused("in (", [&] { comm.all_to_all_v(a.part(0, ranks()), ones, a.part(0, ranks()), ones); });
    comm.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
