// Every collective: dtypes, reductions, counts, roots, places in memory, in place and not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

struct Case {
  std::int64_t count = 0;
  Memory memory = Memory::ordinary;
  bool in_place = false;
  Reduce reduce;
  int root = 0;

  std::string describe() const {
    return "count " + std::to_string(count) + ", " + std::string(name_of(memory)) +
           (in_place ? ", in place, " : ", ") + std::string(name_of(reduce.kind)) + ", root " +
           std::to_string(root);
  }
};

constexpr std::int64_t kLargeBytes = 3 << 20;  // of eight-byte elements; the others' are fewer

class Collectives : public RankTest, public ::testing::WithParamInterface<DType> {
 protected:
  static DType dtype() { return GetParam(); }

  /** Elements of the blocks of a large argument that has `parts` blocks: around the size where
   * transports stop sending in one piece, and more than they move at once. */
  static std::vector<std::int64_t> large_counts(std::int64_t parts) {
    const std::int64_t one_piece = 32'768 / size_of(dtype());
    return {one_piece, one_piece + 1, kLargeBytes / 8 / parts + 13};
  }
  /** Integers have twice as many reductions as floats: i32 takes one half, u64 the other. */
  static std::vector<Reduce> kinds() {
    std::vector<Reduce> all = reductions(dtype());
    std::erase_if(all, [](const Reduce& reduce) {
      const bool calculates = has_reduction(DType::f32, reduce.kind);
      return (dtype() == DType::i32 && !calculates) || (dtype() == DType::u64 && calculates);
    });
    return all;
  }
  /** The sweep: small counts with everything, large ones with a reduction each in turn. */
  static std::vector<Case> cases(std::int64_t parts, bool reduces) {
    const int n = ranks();
    const std::vector<Reduce> kinds = Collectives::kinds();
    const std::size_t kind_count = reduces ? kinds.size() : 1;
    std::vector<std::int64_t> counts{0, 1, 2, n - 1, n + 1, 15, 16, 17, 1000};
    const std::size_t small = counts.size();
    for (const std::int64_t count : large_counts(parts)) counts.push_back(count);
    std::vector<Case> all;
    for (std::size_t c = 0; c < counts.size(); ++c) {
      for (const Memory memory : kMemories) {
        for (const bool in_place : {false, true}) {
          for (std::size_t k = 0; k < (c < small ? kind_count : 1); ++k) {
            const std::size_t turn = c < small ? k : all.size() % kind_count;
            const int root = static_cast<int>(all.size() % static_cast<std::size_t>(n));
            all.push_back({counts[c], memory, in_place, kinds[turn], root});
          }
        }
      }
    }
    return all;
  }

  /** Runs `check(communicator, arena, case)` for every case, with arguments of `parts` blocks. */
  template <class Check>
  void sweep(std::int64_t parts, bool reduces, const Check& check) {
    on_ranks([&](Communicator& comm) {
      Arena arena(comm, kLargeBytes / 8 * size_of(dtype()) + 32'768 * parts + 1024);
      for (const Case& each : cases(parts, reduces)) {
        SCOPED_TRACE(each.describe());
        check(comm, arena, each);
        EXPECT_TRUE(arena.guards_intact());
        if (HasFailure()) return;
      }
    });
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, Collectives, ::testing::ValuesIn(kFewDTypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

/** The data of a collective that does not reduce, from `first` on. */
Contribution data_of(int rank, std::int64_t first = 0) {
  return {DType::u8, ReduceKind::sum, rank, first};
}

TEST_P(Collectives, AllReduce) {
  sweep(1, true, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution mine{dtype(), c.reduce.kind, comm.global_rank()};
    const View in = arena.input(c.memory, c.count, dtype());
    fill(in, mine);
    if (c.in_place) {
      comm.all_reduce(in, c.reduce);
    }
    const View out = c.in_place ? in : arena.output(c.memory, c.count, dtype());
    if (!c.in_place) {
      comm.all_reduce(in, out, c.reduce);
      EXPECT_TRUE(holds(in, mine));
    }
    EXPECT_TRUE(holds(out, Reduced{dtype(), c.reduce, ranks()}));
  });
}

TEST_P(Collectives, Reduce) {
  sweep(1, true, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution mine{dtype(), c.reduce.kind, comm.global_rank()};
    const View in = arena.input(c.memory, c.count, dtype());
    fill(in, mine);
    const View out = c.in_place ? in : arena.output(c.memory, c.count, dtype());
    if (comm.global_rank() == c.root) {
      comm.reduce(in, out, c.root, c.reduce);
      EXPECT_TRUE(holds(out, Reduced{dtype(), c.reduce, ranks()}));
    } else {
      comm.reduce(in, c.count % 2 == 0 ? View{} : out, c.root, c.reduce);
      if (!c.in_place) {
        EXPECT_TRUE(Arena::untouched(out));
      }
    }
    if (comm.global_rank() != c.root || !c.in_place) {
      EXPECT_TRUE(holds(in, mine));
    }
  });
}

TEST_P(Collectives, Broadcast) {
  sweep(1, false, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution roots = data_of(c.root);
    const View out = arena.output(c.memory, c.count, dtype());
    const bool is_root = comm.global_rank() == c.root;
    if (c.in_place) {
      if (is_root) fill(out, roots);
      comm.broadcast(out, c.root);
    } else if (is_root) {
      const View in = arena.input(c.memory, c.count, dtype());
      fill(in, roots);
      comm.broadcast(in, out, c.root);
      EXPECT_TRUE(holds(in, roots));
    } else {
      comm.broadcast(ConstView(nullptr, c.count, dtype()), out, c.root);
    }
    EXPECT_TRUE(holds(out, roots));
  });
}

TEST_P(Collectives, AllGather) {
  sweep(ranks(), false, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution mine = data_of(comm.global_rank());
    const View out = arena.output(c.memory, ranks() * c.count, dtype());
    const View in = c.in_place ? out.part(comm.global_rank() * c.count, c.count)
                               : arena.input(c.memory, c.count, dtype());
    fill(in, mine);
    comm.all_gather(in, out);
    EXPECT_TRUE(holds(in, mine));
    for (int from = 0; from < ranks(); ++from) {
      EXPECT_TRUE(holds(out.part(from * c.count, c.count), data_of(from))) << "from rank " << from;
    }
  });
}

TEST_P(Collectives, AllGatherV) {
  sweep(ranks(), false, [](Communicator& comm, Arena& arena, const Case& c) {
    // Some ranks contribute all, some half; the root nothing.
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < ranks(); ++rank) {
      counts.push_back(rank == c.root ? 0 : rank % 2 == 0 ? c.count : c.count / 2);
    }
    std::int64_t total = 0;
    std::vector<std::int64_t> offsets;
    for (const std::int64_t count : counts) {
      offsets.push_back(total);
      total += count;
    }
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    const Contribution mine = data_of(comm.global_rank());
    const View out = arena.output(c.memory, total, dtype());
    const View in = c.in_place ? out.part(offsets[rank], counts[rank])
                               : arena.input(c.memory, counts[rank], dtype());
    fill(in, mine);
    comm.all_gather_v(in, out, counts);
    EXPECT_TRUE(holds(in, mine));
    for (int from = 0; from < ranks(); ++from) {
      const auto part = static_cast<std::size_t>(from);
      EXPECT_TRUE(holds(out.part(offsets[part], counts[part]), data_of(from)))
          << "from rank " << from;
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  sweep(ranks(), true, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution mine{dtype(), c.reduce.kind, comm.global_rank()};
    const std::int64_t offset = comm.global_rank() * c.count;
    const View in = arena.input(c.memory, ranks() * c.count, dtype());
    const View out =
        c.in_place ? in.part(offset, c.count) : arena.output(c.memory, c.count, dtype());
    fill(in, mine);
    comm.reduce_scatter(in, out, c.reduce);
    EXPECT_TRUE(holds(out, Reduced{dtype(), c.reduce, ranks(), offset}));
    if (c.in_place) fill(out, Contribution{dtype(), c.reduce.kind, comm.global_rank(), offset});
    EXPECT_TRUE(holds(in, mine)) << "an input was written";
  });
}

TEST_P(Collectives, AllToAll) {
  sweep(ranks(), false, [](Communicator& comm, Arena& arena, const Case& c) {
    const Contribution mine = data_of(comm.global_rank());
    const View in = arena.input(c.memory, ranks() * c.count, dtype());
    const View out = c.in_place ? in : arena.output(c.memory, ranks() * c.count, dtype());
    fill(in, mine);
    comm.all_to_all(in, out);
    if (!c.in_place) {
      EXPECT_TRUE(holds(in, mine));
    }
    for (int from = 0; from < ranks(); ++from) {
      EXPECT_TRUE(
          holds(out.part(from * c.count, c.count), data_of(from, comm.global_rank() * c.count)))
          << "from rank " << from;
    }
  });
}

class Collective : public RankTest {};

TEST_F(Collective, EveryReductionOfEveryDType) {
  on_ranks([](Communicator& comm) {
    for (const DType dtype : kDTypes) {
      for (const Reduce& reduce : reductions(dtype)) {
        for (const std::int64_t count : {5, 1033}) {  // in a cache line, and more
          SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(reduce.kind)));
          std::vector<std::byte> memory(static_cast<std::size_t>(count * size_of(dtype)));
          const View data(memory.data(), count, dtype);
          fill(data, Contribution{dtype, reduce.kind, comm.global_rank()});
          comm.all_reduce(data, reduce);
          ASSERT_TRUE(holds(data, Reduced{dtype, reduce, ranks()}));
        }
      }
    }
  });
}

TEST_F(Collective, ReductionsThatADTypeLacksAreRefused) {
  on_ranks([](Communicator& comm) {
    std::array<std::byte, 64> memory{};
    const auto refused = [&](DType dtype, ReduceKind kind, const std::string& message) {
      const View data(memory.data(), 8, dtype);
      try {
        comm.reduce_scatter(View(memory.data(), std::int64_t{8} * ranks(), dtype), data, kind);
        ADD_FAILURE() << message;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()).find(message), 0U) << error.what();
      }
    };
    refused(
        DType::f32, ReduceKind::band,
        "reduce.kind is band, but f32 on the CPU has only sum, average, min, max, product, premul");
    refused(DType::bf16, ReduceKind::lor, "reduce.kind is lor, but bf16");
    for (const ReduceKind kind : {ReduceKind::sum, ReduceKind::average, ReduceKind::product}) {
      refused(DType::boolean, kind,
              "reduce.kind is " + std::string(name_of(kind)) +
                  ", but bool on the CPU has only min, max, band, bor, bxor, ");
    }
    comm.barrier();
  });
}

TEST_F(Collective, EmptyArgumentsMayBeNull) {
  on_ranks([](Communicator& comm) {
    const View none;
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()), 0);
    comm.all_reduce(none);
    comm.all_reduce(none, none);
    comm.reduce(none, none, 0);
    comm.broadcast(none, 0);
    comm.all_gather(none, none);
    comm.all_gather_v(none, none, counts);
    comm.reduce_scatter(none, none);
    comm.all_to_all(none, none);
  });
}

TEST_F(Collective, RanksAndHosts) {
  on_ranks([](Communicator& comm) {
    ASSERT_EQ(comm.world_size(), ranks());
    if (world().launch != Launch::threads) {
      EXPECT_EQ(comm.global_rank(), world().rank);
    }
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    const std::vector<int>& hosts = world().hosts;
    int before = 0;
    int on_host = 0;
    for (std::size_t other = 0; other < hosts.size(); ++other) {
      if (hosts[other] != hosts[rank]) continue;
      ++on_host;
      if (other < rank) ++before;
    }
    EXPECT_EQ(comm.local_rank(), before);
    EXPECT_EQ(comm.local_size(), on_host);
    EXPECT_FALSE(comm.describe().empty());
    EXPECT_EQ(comm.describe().find('\n'), std::string::npos);
  });
}

TEST_F(Collective, BarrierWaitsForEveryRank) {
  on_ranks([](Communicator& comm) {
    // Each rank writes the round into its place in a file; after the barrier all have done so.
    const std::string path =
        ::testing::TempDir() + "barrier-" + agree_on_ticket(comm).to_string().substr(0, 16);
    const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file);
    comm.barrier();
    ::unlink(path.c_str());
    std::vector<std::int32_t> seen(static_cast<std::size_t>(ranks()));
    const std::size_t bytes = seen.size() * sizeof(std::int32_t);
    for (std::int32_t round = 1; round <= 200; ++round) {
      const auto place = static_cast<off_t>(sizeof round) * comm.global_rank();
      ASSERT_EQ(::pwrite(file.get(), &round, sizeof round, place), ssize_t{sizeof round});
      comm.barrier();
      ASSERT_EQ(::pread(file.get(), seen.data(), bytes, 0), static_cast<ssize_t>(bytes));
      for (const std::int32_t theirs : seen) ASSERT_GE(theirs, round);
    }
  });
}

TEST_F(Collective, ManyInARowDoNotMix) {
  on_ranks([](Communicator& comm) {
    // No rank checks anything until all are done, so that fast ranks run ahead.
    constexpr int kCalls = 300;
    constexpr std::size_t kCount = 700;
    std::vector<std::vector<std::int32_t>> results(kCalls, std::vector<std::int32_t>(kCount));
    for (int call = 0; call < kCalls; ++call) {
      auto& data = results[static_cast<std::size_t>(call)];
      std::fill(data.begin(), data.end(), call * (comm.global_rank() + 1));
      if (call % 3 == 0) {
        comm.all_reduce(View(std::span(data)));
      } else if (call % 3 == 1) {
        comm.broadcast(View(std::span(data)), call % ranks());
      } else {
        comm.reduce(ConstView(std::span(data)), View(std::span(data)), call % ranks());
      }
    }
    const std::int32_t all = ranks() * (ranks() + 1) / 2;
    for (int call = 0; call < kCalls; ++call) {
      const int root = call % ranks();
      const bool sums = call % 3 == 0 || (call % 3 == 2 && comm.global_rank() == root);
      const std::int32_t factor = sums ? all : call % 3 == 1 ? root + 1 : comm.global_rank() + 1;
      const auto& data = results[static_cast<std::size_t>(call)];
      ASSERT_EQ(data, std::vector<std::int32_t>(kCount, call * factor)) << "call " << call;
    }
  });
}

}  // namespace
}  // namespace tutti::test
