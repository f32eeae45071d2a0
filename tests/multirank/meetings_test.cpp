// How often the ranks of a host meet in short calls among several hosts: once before the hosts
// exchange, and once after.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "comm/hosts/connect.hpp"
#include "comm/hosts/transport.hpp"
#include "comm/mpi/session.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Meetings : public RankTest {
 protected:
  static constexpr std::chrono::seconds kTimeout{20};

  void SetUp() override {
    if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  }

  /** Of this rank with the others of its host so far. */
  static std::int64_t meetings(const HierarchicalTransport& transport) {
    const shm::Local& local = transport.local();
    const auto in_between =
        local.group().control().slot(local.rank()).phase.value.load(std::memory_order_relaxed);
    return static_cast<std::int64_t>(local.meetings() + in_between);
  }

  /** In `call`, on this rank, at most `most` times; at least `fewest` if it is not alone. */
  using Action = std::function<void(Communicator&)>;
  void expect_meetings(std::int64_t fewest, std::int64_t most, const Action& call) {
    on_ranks([&](Communicator&) {
      auto connected = connect_session(mpi::Session::world(kTimeout), kTimeout);
      const auto& transport = dynamic_cast<HierarchicalTransport&>(*connected);
      Communicator comm(std::move(connected));
      const bool alone = transport.local_size() == 1;
      comm.barrier();
      for (int time = 0; time < 20; ++time) {
        const std::int64_t before = meetings(transport);
        call(comm);
        const std::int64_t met = meetings(transport) - before;
        EXPECT_LE(met, most) << "call " << time;
        EXPECT_GE(met, alone ? 0 : fewest) << "call " << time;
      }
    });
  }
};

TEST_F(Meetings, AreTwoOfAnAllReduce) {
  for (const std::size_t count : {2U, 256U, 900U}) {
    expect_meetings(2, 2, [count](Communicator& comm) {
      std::vector<float> data(count, 1);
      comm.all_reduce(View(data.data(), std::ssize(data), DType::f32));
      EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(comm.world_size())));
    });
  }
}

TEST_F(Meetings, AreTwoOfABarrier) {
  expect_meetings(2, 2, [](Communicator& comm) { comm.barrier(); });
}

/** The others of a host take what its root or its leader leaves for them, and leave. */
TEST_F(Meetings, AreNoneOfABroadcast) {
  for (const std::size_t bytes : {8U, 1024U}) {
    expect_meetings(0, 0, [bytes](Communicator& comm) {
      std::vector<std::uint8_t> data(bytes, comm.global_rank() == 0 ? 7 : 0);
      comm.broadcast(View(data.data(), std::ssize(data), DType::u8), 0);
      EXPECT_EQ(data, std::vector<std::uint8_t>(bytes, 7));
    });
  }
}

/** The leader of a host takes what the others leave for it. */
TEST_F(Meetings, AreNoneOfAReductionToOneRank) {
  for (const int root : {0, world().ranks - 1}) {
    expect_meetings(0, 0, [root](Communicator& comm) {
      std::vector<float> data(2, 1);
      std::vector<float> sums(2);
      comm.reduce(ConstView(data.data(), 2, DType::f32), View(sums.data(), 2, DType::f32), root);
    });
  }
}

TEST_F(Meetings, AreTwoOfAGathering) {
  expect_meetings(2, 2, [](Communicator& comm) {
    const float own = static_cast<float>(comm.global_rank());
    std::vector<float> all(static_cast<std::size_t>(comm.world_size()));
    comm.all_gather(ConstView(&own, 1, DType::f32),
                    View(all.data(), comm.world_size(), DType::f32));
    EXPECT_EQ(all.back(), static_cast<float>(comm.world_size() - 1));
  });
}

TEST_F(Meetings, AreTwoOfAReductionOfWhichEachRankGetsABlock) {
  expect_meetings(2, 2, [](Communicator& comm) {
    const std::vector<float> data(static_cast<std::size_t>(comm.world_size()), 1);
    float sum = 0;
    comm.reduce_scatter(ConstView(data.data(), comm.world_size(), DType::f32),
                        View(&sum, 1, DType::f32));
    EXPECT_EQ(sum, static_cast<float>(comm.world_size()));
  });
}

/** Two to compare, and one after all blocks have come; those of the host are taken as they come. */
TEST_F(Meetings, AreThreeWhereBlocksGoFromRankToRank) {
  const auto ranks = static_cast<std::size_t>(world().ranks);
  expect_meetings(3, 3, [ranks](Communicator& comm) {
    const float own = static_cast<float>(comm.global_rank());
    std::vector<float> all(comm.global_rank() == 0 ? ranks : 0);
    comm.gather(ConstView(&own, 1, DType::f32), View(all.data(), std::ssize(all), DType::f32), 0);
    if (comm.global_rank() == 0) {
      EXPECT_EQ(all.back(), static_cast<float>(ranks - 1));
    }
  });
  expect_meetings(3, 3, [ranks](Communicator& comm) {
    const std::vector<float> all(comm.global_rank() == 0 ? ranks : 0, 7);
    float own = 0;
    comm.scatter(ConstView(all.data(), std::ssize(all), DType::f32), View(&own, 1, DType::f32), 0);
    EXPECT_EQ(own, 7);
  });
  expect_meetings(3, 3, [ranks](Communicator& comm) {
    const std::vector<float> from(ranks, static_cast<float>(comm.global_rank()));
    std::vector<float> to(ranks);
    comm.all_to_all(ConstView(from.data(), std::ssize(from), DType::f32),
                    View(to.data(), std::ssize(to), DType::f32));
    EXPECT_EQ(to.back(), static_cast<float>(ranks - 1));
  });
}

}  // namespace
}  // namespace tutti::test
