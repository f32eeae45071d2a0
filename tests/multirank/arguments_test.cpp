// Bad arguments: refused by name and value, with nothing sent and nothing changed.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "support/data.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

/** Memory that bad calls point into. */
struct Scratch {
  std::vector<float> floats = std::vector<float>(1000, 1.0F);

  View view(std::int64_t offset, std::int64_t count) {
    return {floats.data() + offset, count, DType::f32};
  }
};

struct BadCall {
  const char* name;
  std::function<void(Communicator&, Scratch&)> make;
  std::vector<std::string> shown;  ///< what the message names: argument, value
};

std::vector<BadCall> bad_calls() {
  const auto null = [](std::int64_t count) { return View(nullptr, count, DType::f32); };
  return {
      {"NullInput", [=](auto& comm, auto& s) { comm.all_reduce(null(10), s.view(0, 10)); }, {"in"}},
      {"NullOutput",
       [=](auto& comm, auto& s) { comm.all_reduce(s.view(0, 10), null(10)); },
       {"out"}},
      {"NullInPlace", [=](auto& comm, auto&) { comm.all_reduce(null(10)); }, {"10"}},
      {"NegativeCount",
       [](auto& comm, auto& s) { comm.all_reduce(s.view(0, -3), s.view(10, -3)); },
       {"-3"}},
      {"AllReduceCounts",
       [](auto& comm, auto& s) { comm.all_reduce(s.view(0, 10), s.view(20, 11)); },
       {"10", "11", "count"}},
      {"AllReduceDTypes",
       [](auto& comm, auto& s) {
         comm.all_reduce(s.view(0, 10), View(s.floats.data() + 20, 10, DType::i32));
       },
       {"f32", "i32"}},
      {"SparseDType",
       [](auto& comm, auto& s) {
         comm.sparse_all_reduce({}, View(s.floats.data(), 10, DType::i32));
       },
       {"out.dtype", "i32"}},
      {"SparseReduction",
       [](auto& comm, auto& s) { comm.sparse_all_reduce({}, s.view(0, 10), Reduce::max); },
       {"reduce.kind"}},
      {"SparseCountNegative",
       [](auto& comm, auto& s) {
         comm.sparse_all_reduce({nullptr, nullptr, -1}, s.view(0, 10));
       },
       {"in.count", "-1"}},
      {"SparseCountAboveOut",
       [](auto& comm, auto& s) {
         comm.sparse_all_reduce({nullptr, nullptr, 11}, s.view(0, 10));
       },
       {"in.count", "11", "10"}},
      {"SparseNull",
       [](auto& comm, auto& s) {
         comm.sparse_all_reduce({nullptr, s.floats.data() + 20, 1}, s.view(0, 10));
       },
       {"in.indices", "null"}},
      {"SparseIndicesTwice",
       [](auto& comm, auto& s) {
         const std::uint32_t indices[] = {1, 5, 5, 6};
         comm.sparse_all_reduce({indices, s.floats.data() + 20, 4}, s.view(0, 10));
       },
       {"in.indices[2]", "5"}},
      {"SparseIndexTooLarge",
       [](auto& comm, auto& s) {
         const std::uint32_t indices[] = {1, 10};
         comm.sparse_all_reduce({indices, s.floats.data() + 20, 2}, s.view(0, 10));
       },
       {"in.indices[1]", "10"}},
      {"SparseCountOfMoreThanIndicesReach",
       [](auto& comm, auto& s) {
         comm.sparse_all_reduce({}, View(s.floats.data(), kMostSparse + 1, DType::f32));
       },
       {"out.count", "4294967296"}},
      {"SparseOverlap",
       [](auto& comm, auto& s) {
         const std::uint32_t index = 1;
         comm.sparse_all_reduce({&index, s.floats.data() + 9, 1}, s.view(0, 10));
       },
       {"in.values", "out", "overlap"}},
      {"ReduceRootTooLarge",
       [](auto& comm, auto& s) { comm.reduce(s.view(0, 10), s.view(20, 10), 99); },
       {"root", "99"}},
      {"ReduceRootNegative",
       [](auto& comm, auto& s) { comm.reduce(s.view(0, 10), s.view(20, 10), -1); },
       {"root", "-1"}},
      {"ReduceCountsAtTheRoot",
       [](auto& comm, auto& s) { comm.reduce(s.view(0, 10), s.view(20, 11), comm.global_rank()); },
       {"10", "11"}},
      {"BroadcastRoot",
       [](auto& comm, auto& s) { comm.broadcast(s.view(0, 10), comm.world_size()); },
       {"root"}},
      {"BroadcastCounts",
       [](auto& comm, auto& s) { comm.broadcast(s.view(0, 10), s.view(20, 12), 0); },
       {"10", "12"}},
      {"AllGatherCounts",
       [](auto& comm, auto& s) {
         comm.all_gather(s.view(0, 10), s.view(20, 10 * comm.world_size() + 1));
       },
       {"out", "count"}},
      {"AllGatherVTooFewCounts",
       [](auto& comm, auto& s) {
         comm.all_gather_v(s.view(0, 10), s.view(20, 10), std::vector<std::int64_t>{});
       },
       {"counts"}},
      {"AllGatherVNegativeCount",
       [](auto& comm, auto& s) {
         const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.world_size()), -7);
         comm.all_gather_v(s.view(0, 0), s.view(20, 0), counts);
       },
       {"counts", "-7"}},
      {"AllGatherVOwnCount",
       [](auto& comm, auto& s) {
         const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.world_size()), 7);
         comm.all_gather_v(s.view(0, 8), s.view(20, 7 * comm.world_size()), counts);
       },
       {"8", "7"}},
      {"AllGatherVTotal",
       [](auto& comm, auto& s) {
         const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.world_size()), 7);
         comm.all_gather_v(s.view(0, 7), s.view(20, 7 * comm.world_size() + 1), counts);
       },
       {"out"}},
      {"ReduceScatterCounts",
       [](auto& comm, auto& s) {
         comm.reduce_scatter(s.view(0, 10 * comm.world_size() + 1), s.view(100, 10));
       },
       {"in"}},
      {"AllToAllUneven",
       [](auto& comm, auto& s) {
         // No number of ranks divides both; a single rank takes any count.
         const std::int64_t count = 10 * comm.world_size() + (comm.world_size() > 1 ? 1 : 0);
         comm.all_to_all(s.view(0, count), s.view(100, comm.world_size() > 1 ? count : count + 1));
       },
       {"count"}},
      {"OverlapByHalf",
       [](auto& comm, auto& s) { comm.all_reduce(s.view(0, 10), s.view(5, 10)); },
       {"overlap"}},
      {"OverlapByOneElement",
       [](auto& comm, auto& s) { comm.all_reduce(s.view(9, 10), s.view(0, 10)); },
       {"overlap"}},
      {"OverlapInAllGather",
       [](auto& comm, auto& s) {
         // This rank's part would begin at 10 * rank, not one element later.
         const std::int64_t n = comm.world_size();
         comm.all_gather(s.view(10 * comm.global_rank() + 1, 10), s.view(0, 10 * n));
       },
       {"overlap"}},
      {"OverlapInReduceScatter",
       [](auto& comm, auto& s) {
         const std::int64_t n = comm.world_size();
         comm.reduce_scatter(s.view(0, 10 * n), s.view(10 * comm.global_rank() + 1, 10));
       },
       {"overlap"}},
      {"OverlapInAllToAll",
       [](auto& comm, auto& s) {
         const std::int64_t n = comm.world_size();
         comm.all_to_all(s.view(0, 10 * n), s.view(10 * n - 1, 10 * n));
       },
       {"overlap"}},
      {"FractionForIntegers",
       [](auto& comm, auto& s) {
         comm.all_reduce(View(s.floats.data(), 10, DType::i32), Reduce::premul_sum(0.5));
       },
       {"factor", "0.5"}},
      {"NotANumberForIntegers",
       [](auto& comm, auto& s) {
         comm.all_reduce(View(s.floats.data(), 10, DType::i64),
                         Reduce::premul_sum(std::numeric_limits<double>::quiet_NaN()));
       },
       {"factor"}},
      {"FactorBeyondIntegers",
       [](auto& comm, auto& s) {
         comm.all_reduce(View(s.floats.data(), 10, DType::i64), Reduce::premul_sum(1e300));
       },
       {"factor"}},
      {"CountBeyondMemory",
       [](auto& comm, auto& s) {
         constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 2;
         comm.all_reduce(s.view(0, kHuge), s.view(0, kHuge));
       },
       {"count"}},
      {"SendToNobody", [](auto& comm, auto& s) { comm.send(s.view(0, 1), 77); }, {"77"}},
      {"RecvFromNobody", [](auto& comm, auto& s) { comm.recv(s.view(0, 1), -2); }, {"-2"}},
      {"SendWithATagBelowZero",
       [](auto& comm, auto& s) { comm.send(s.view(0, 1), 0, -1); },
       {"tag", "-1"}},
      {"RecvWithATagThatIsNone",
       [](auto& comm, auto& s) { comm.recv(s.view(0, 1), kAnySource, -7); },
       {"tag", "-7"}},
      {"SendToAnyRank",
       [](auto& comm, auto& s) { comm.send(s.view(0, 1), kAnySource); },
       {"destination", "-1"}},
      {"RecvFromAnySourceOnGpu",
       [](auto& comm, auto& s) {
         comm.recv(View(s.floats.data(), 1, DType::f32, {DeviceKind::cuda, 0}), kAnySource);
       },
       {"source", "NCCL"}},
      {"SendWithATagOnGpu",
       [](auto& comm, auto& s) {
         comm.send(View(s.floats.data(), 1, DType::f32, {DeviceKind::cuda, 0}), 0, 3);
       },
       {"tag", "3", "NCCL"}},
      {"ExchangeWithNobody",
       [](auto& comm, auto& s) {
         const std::vector<Message> messages{Message::recv(s.view(0, 1), 0),
                                             Message::send(s.view(1, 1), 77)};
         comm.exchange(messages);
       },
       {"messages[1].destination", "77"}},
      {"ExchangeOfANegativeCount",
       [](auto& comm, auto& s) {
         const std::vector<Message> messages{Message::recv(s.view(0, -1), 0)};
         comm.exchange(messages);
       },
       {"messages[0].out.count", "-1"}},
      {"ExchangeIntoOnePlaceTwice",
       [](auto& comm, auto& s) {
         const std::vector<Message> messages{Message::recv(s.view(0, 10), 0),
                                             Message::recv(s.view(9, 10), 0, 1)};
         comm.exchange(messages);
       },
       {"messages[0]", "messages[1]", "overlap"}},
      {"ExchangeIntoWhatIsSent",
       [](auto& comm, auto& s) {
         const std::vector<Message> messages{Message::send(s.view(5, 10), 0),
                                             Message::send(s.view(5, 10), 0),
                                             Message::recv(s.view(0, 6), 0, 1)};
         comm.exchange(messages);
       },
       {"messages[0]", "messages[2]", "overlap"}},
      {"AllocateLessThanNothing", [](auto& comm, auto&) { comm.allocate(-1); }, {"bytes", "-1"}},
  };
}

class BadArguments : public RankTest, public ::testing::WithParamInterface<BadCall> {
 protected:
  /** Calls that go well afterwards: nothing of the bad one is left on any rank. */
  static void expect_unharmed(Communicator& comm) {
    std::vector<std::int32_t> ones(10, 1);
    comm.all_reduce(View(std::span(ones)));
    EXPECT_EQ(ones, std::vector<std::int32_t>(10, ranks()));
    comm.barrier();
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, BadArguments, ::testing::ValuesIn(bad_calls()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(BadArguments, AreRefusedByNameAndValue) {
  on_ranks([](Communicator& comm) {
    Scratch scratch;
    try {
      GetParam().make(comm, scratch);
      ADD_FAILURE() << "was not refused";
    } catch (const InvalidArgument& error) {
      for (const std::string& part : GetParam().shown) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "no '" << part << "' in: " << error.what();
      }
    }
    EXPECT_EQ(scratch.floats, std::vector<float>(1000, 1.0F));
    expect_unharmed(comm);
  });
}

TEST_P(BadArguments, OfOneRankDoNotReachTheOthers) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    if (comm.global_rank() == 1) {
      Scratch scratch;
      EXPECT_THROW(GetParam().make(comm, scratch), InvalidArgument);
    }
    expect_unharmed(comm);
  });
}

class Arguments : public RankTest {};

TEST_F(Arguments, AreCheckedBeforeAWorkerStreamSeesThem) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    std::vector<float> data(10, 1.0F);
    EXPECT_THROW(comm.broadcast(View(std::span(data)), 99, stream), InvalidArgument);
    comm.all_reduce(View(std::span(data)), {}, stream).wait();
    EXPECT_EQ(data, std::vector<float>(10, static_cast<float>(ranks())));
  });
}

TEST_F(Arguments, OnAGpuThatIsNotThereAreRefused) {
  on_ranks([](Communicator& comm) {
    std::vector<float> data(10, 1.0F);
    const View gpu(data.data(), 10, DType::f32, {DeviceKind::cuda, gpu_count()});
    if (gpu_count() == 0) {
      EXPECT_THROW(comm.all_reduce(gpu), BackendUnavailable);
      EXPECT_THROW(comm.allocate(64, gpu.device), BackendUnavailable);
    } else {
      EXPECT_THROW(comm.all_reduce(gpu), InvalidArgument);
      EXPECT_THROW(comm.allocate(64, gpu.device), InvalidArgument);
    }
    EXPECT_THROW(comm.all_gather(std::span<const float>(data), gpu), Error);
    comm.all_reduce(View(std::span(data)));
    EXPECT_EQ(data, std::vector<float>(10, static_cast<float>(ranks())));
  });
}

TEST_F(Arguments, MayLieSideBySide) {
  on_ranks([](Communicator& comm) {
    Scratch scratch;
    comm.all_reduce(scratch.view(10, 10), scratch.view(0, 10));
    comm.all_reduce(scratch.view(10, 10), scratch.view(20, 10));
    for (const std::size_t i : {0U, 9U, 20U, 29U}) {
      EXPECT_EQ(scratch.floats[i], static_cast<float>(ranks()));
    }
  });
}

}  // namespace
}  // namespace tutti::test
