// Ranks that ask for different things: MismatchError on every rank, and no output is touched.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/memory.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

/** One rank's side of a collective, given input and output memory of 2 MiB each. */
struct Call {
  std::string shown;  ///< what the message says of it
  std::function<void(Communicator&, ConstView in, View out)> make;
  bool may_return = false;  ///< before it is known that others make another call
};

struct Mismatch {
  const char* name;
  Call most;  ///< what all ranks but one ask for
  Call odd;   ///< what one rank asks for
};

Call all_reduce(std::int64_t count, DType dtype, Reduce reduce, std::string shown) {
  return {std::move(shown), [=](Communicator& comm, ConstView in, View out) {
            comm.all_reduce({in.data, count, dtype}, {out.data, count, dtype}, reduce);
          }};
}

Call broadcast(std::int64_t count, int root) {
  return {"broadcast(f32, count " + std::to_string(count) + ", root " + std::to_string(root),
          [=](Communicator& comm, ConstView in, View out) {
            comm.broadcast(in.part(0, count), out.part(0, count), root);
          },
          count <= 64 * 1024 / 4};
}

Call reduce(std::int64_t count, int root) {
  return {"root " + std::to_string(root),
          [=](Communicator& comm, ConstView in, View out) {
            comm.reduce(in.part(0, count), out.part(0, count), root);
          },
          count <= 32 * 1024 / 4};
}

Call all_gather(std::int64_t count) {
  return {"all_gather(f32, count " + std::to_string(count),
          [=](Communicator& comm, ConstView in, View out) {
            comm.all_gather(in.part(0, count), out.part(0, count * comm.world_size()));
          }};
}

Call all_gather_v(std::int64_t first, std::int64_t others) {
  return {"all_gather_v", [=](Communicator& comm, ConstView in, View out) {
            std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.world_size()), others);
            counts.front() = first;
            std::int64_t total = 0;
            for (const std::int64_t count : counts) total += count;
            const auto rank = static_cast<std::size_t>(comm.global_rank());
            comm.all_gather_v(in.part(0, counts[rank]), out.part(0, total), counts);
          }};
}

Call reduce_scatter(std::int64_t count) {
  return {"reduce_scatter(f32, count " + std::to_string(count),
          [=](Communicator& comm, ConstView in, View out) {
            comm.reduce_scatter(in.part(0, count * comm.world_size()), out.part(0, count));
          }};
}

Call all_to_all(std::int64_t count) {
  return {"all_to_all(f32, count " + std::to_string(count),
          [=](Communicator& comm, ConstView in, View out) {
            const std::int64_t all = count * comm.world_size();
            comm.all_to_all(in.part(0, all), out.part(0, all));
          }};
}

Call sparse_all_reduce(std::int64_t count, std::int64_t entries, Reduce reduce, std::string shown) {
  return {std::move(shown), [=](Communicator& comm, ConstView in, View out) {
            std::vector<std::uint32_t> indices(static_cast<std::size_t>(entries));
            std::iota(indices.begin(), indices.end(), 0U);
            comm.sparse_all_reduce({indices.data(), static_cast<const float*>(in.data), entries},
                                   out.part(0, count), reduce);
          }};
}

Call sparse_sum(std::int64_t count, std::int64_t entries) {
  return sparse_all_reduce(count, entries, {},
                           "sparse_all_reduce(f32, count " + std::to_string(count) + ", sum)");
}

Call barrier() {
  return {"barrier", [](Communicator& comm, ConstView, View) { comm.barrier(); }};
}

Call allocate(std::int64_t bytes) {
  return {"allocate(" + std::to_string(bytes) + " bytes",
          [=](Communicator& comm, ConstView, View) { comm.allocate(bytes); }};
}

Call split() {
  return {"split", [](Communicator& comm, ConstView, View) { comm.split(0, 0); }};
}

Call sum(std::int64_t count) {
  return all_reduce(count, DType::f32, {}, "all_reduce(f32, count " + std::to_string(count));
}

std::vector<Mismatch> mismatches() {
  const Reduce half = Reduce::premul_sum(0.5);
  const Reduce third = Reduce::premul_sum(0.25);
  return {
      {"SmallCounts", sum(10), sum(11)},
      {"LargeCounts", sum(300'001), sum(300'002)},
      {"SmallAndLarge", sum(10), sum(300'000)},
      {"LargeAndSmall", sum(300'000), sum(10)},
      {"NothingAndSomething", sum(0), sum(1)},
      {"DTypes", sum(10), all_reduce(10, DType::i32, {}, "all_reduce(i32, count 10")},
      {"DTypesOfOneSize", sum(100'000),
       all_reduce(50'000, DType::f64, {}, "all_reduce(f64, count 50000")},
      {"Reductions", all_reduce(10, DType::f32, Reduce::min, "min"),
       all_reduce(10, DType::f32, Reduce::max, "max")},
      {"Factors", all_reduce(10, DType::f32, half, "0.5"),
       all_reduce(10, DType::f32, third, "0.25")},
      {"BroadcastRoots", broadcast(10, 0), broadcast(10, 1)},
      {"MediumBroadcastRoots", broadcast(12'000, 0), broadcast(12'000, 1)},
      {"LargeBroadcastRoots", broadcast(200'000, 0), broadcast(200'000, 1)},
      {"BroadcastCounts", broadcast(10, 0), broadcast(11, 0)},
      {"ShortAndLongBroadcast", broadcast(10, 0), broadcast(200'000, 0)},
      {"LongAndShortBroadcast", broadcast(200'000, 0), broadcast(10, 0)},
      {"ReduceRoots", reduce(10, 1), reduce(10, 0)},
      {"LargeReduceRoots", reduce(200'000, 1), reduce(200'000, 0)},
      {"AllGatherCounts", all_gather(5), all_gather(6)},
      {"AllGatherVCounts", all_gather_v(5, 6), all_gather_v(6, 5)},
      {"ReduceScatterCounts", reduce_scatter(50'000), reduce_scatter(50'001)},
      {"AllToAllCounts", all_to_all(50'000), all_to_all(50'001)},
      {"SparseCounts", sparse_sum(5000, 10), sparse_sum(5001, 10)},
      {"LargeSparseCounts", sparse_sum(300'000, 300'000), sparse_sum(300'001, 1)},
      {"SparseReductions", sparse_sum(5000, 10),
       sparse_all_reduce(5000, 20, Reduce::average, "average")},
      {"SparseAndDense", sparse_sum(5000, 10), sum(5000)},
      {"Collectives", sum(10), all_gather(10)},
      {"LargeCollectives", sum(100'000), reduce_scatter(100'000)},
      {"ReduceAndBroadcast", sum(10), broadcast(10, 0)},
      {"BroadcastAndReduce", broadcast(10, 0), sum(10)},
      {"BroadcastOfTheLastAndReduce", broadcast(10, 1), sum(300'000)},
      {"BroadcastAndAllocate", broadcast(10, 0), allocate(4000)},
      {"SplitAndBroadcast", split(), broadcast(10, 1)},
      {"BarrierAndAllReduce", barrier(), sum(10)},
      {"AllReduceAndBarrier", sum(300'000), barrier()},
      {"AllocateSizes", allocate(4000), allocate(4004)},
      {"AllocateAndAllReduce", allocate(4000), sum(1000)},
      {"SplitAndBarrier", split(), barrier()},
  };
}

class Mismatches : public RankTest, public ::testing::WithParamInterface<Mismatch> {
 protected:
  /** Rank `odd` makes the other call, on memory of the given kind. */
  void expect_error(int odd, Memory memory) {
    on_ranks([&](Communicator& comm) {
      const Mismatch& mismatch = GetParam();
      Arena arena(comm, 2 << 20);
      const View in = arena.input(memory, (2 << 20) / 4, DType::f32);
      const View out = arena.output(memory, (2 << 20) / 4, DType::f32);
      const Call& call = comm.global_rank() == odd ? mismatch.odd : mismatch.most;
      bool returned = false;
      try {
        // So that there is a collective that went well; but who comes late to the end of it may
        // hear of the mismatch there.
        comm.barrier();
        call.make(comm, in, out);
        returned = true;
        // Between hosts who takes part in a short broadcast or reduce need not wait for the others.
        EXPECT_TRUE(call.may_return) << "did not throw";
        comm.barrier();
        ADD_FAILURE() << "the next call did not throw";
      } catch (const MismatchError& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find(mismatch.most.shown), std::string::npos) << what;
        EXPECT_NE(what.find(mismatch.odd.shown), std::string::npos) << what;
        EXPECT_NE(what.find("rank " + std::to_string(odd)), std::string::npos) << what;
      }
      EXPECT_TRUE(Arena::untouched(in));
      EXPECT_TRUE(returned || Arena::untouched(out));
      EXPECT_TRUE(arena.guards_intact());

      // The communicator is of no more use, and says why.
      for (const Call& next : {sum(10), barrier(), allocate(100), split()}) {
        try {
          next.make(comm, in, out);
          ADD_FAILURE() << next.shown << " did not throw";
        } catch (const CommunicationError& error) {
          EXPECT_NE(std::string(error.what()).find(mismatch.odd.shown), std::string::npos)
              << error.what();
        }
      }
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, Mismatches, ::testing::ValuesIn(mismatches()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(Mismatches, OfTheLastRankEndInAnErrorOnEveryRank) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  expect_error(ranks() - 1, Memory::ordinary);
}

TEST_P(Mismatches, OfTheFirstRankOnSymmetricMemoryEndInAnErrorOnEveryRank) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  expect_error(0, Memory::symmetric);
}

class MismatchOfAll : public RankTest {};

TEST_F(MismatchOfAll, ShowsEveryRequest) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    std::vector<float> data(100);
    try {
      comm.all_reduce(View(data.data(), 10 + comm.global_rank(), DType::f32));
      ADD_FAILURE() << "did not throw";
    } catch (const MismatchError& error) {
      for (int rank = 0; rank < ranks(); ++rank) {
        const std::string wanted = "count " + std::to_string(10 + rank);
        EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(data, std::vector<float>(100));
  });
}

TEST_F(MismatchOfAll, WaitsInTheEventOfAWorkerStream) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    std::vector<float> data(100);
    const Event event =
        comm.all_reduce(View(data.data(), 10 + comm.global_rank(), DType::f32), {}, stream);
    EXPECT_THROW(event.wait(), MismatchError);
    EXPECT_THROW(event.wait(), MismatchError) << "the second time";
  });
}

TEST_F(MismatchOfAll, LeavesOtherCommunicatorsAlone) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> child = comm.split(0, 0);
    std::vector<float> data(100, 1.0F);
    EXPECT_THROW(child->all_reduce(View(data.data(), 10 + comm.global_rank(), DType::f32)),
                 MismatchError);
    child.reset();
    comm.all_reduce(View(std::span(data)));
    EXPECT_EQ(data, std::vector<float>(100, static_cast<float>(ranks())));
  });
}

}  // namespace
}  // namespace tutti::test
