// send and recv: sizes, dtypes, order, overlap, and what happens if the two sides differ.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class PointToPoint : public RankTest {};

double datum(int from, int to, std::int64_t i) {
  return contribution(DType::u8, ReduceKind::sum, 8 * from + to, i);
}

TEST_F(PointToPoint, EveryDTypeSizeAndPlaceFromEveryRankToEveryOther) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    for (const DType dtype : kDTypes) {
      Arena arena(comm, (1 << 20) + 64);
      // A piece of a long message is some tens of KiB.
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, (64 << 10) / size_of(dtype),
            (64 << 10) / size_of(dtype) + 1, (1 << 20) / size_of(dtype) + 3}) {
        int turn = 0;
        for (int from = 0; from < ranks(); ++from) {
          for (int to = 0; to < ranks(); ++to) {
            if (from == to) continue;
            const Memory memory = kMemories.at(static_cast<std::size_t>(turn++) % 4);
            SCOPED_TRACE(std::string(name_of(dtype)) + ", count " + std::to_string(count) + ", " +
                         std::string(name_of(memory)) + ", from " + std::to_string(from) + " to " +
                         std::to_string(to));
            const auto value = [&](std::int64_t i) { return datum(from, to, i); };
            if (rank == from) {
              const View in = arena.input(memory, count, dtype);
              fill(in, value);
              comm.send(in, to);
              ASSERT_TRUE(holds(in, value));
            } else if (rank == to) {
              const View out = arena.output(memory, count, dtype);
              comm.recv(out, from);
              ASSERT_TRUE(holds(out, value));
            }
            ASSERT_TRUE(arena.guards_intact());
          }
        }
      }
    }
  });
}

TEST_F(PointToPoint, AMessageIsDoneWhenItHasBeenTaken) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    // The receiver announces that it is about to receive; without that the sender must wait.
    std::vector<std::int32_t> data(1, comm.global_rank());
    if (comm.global_rank() == 0) {
      const Stream stream = Stream::worker();
      const Event sent = comm.send(ConstView(std::span(data)), 1, 0, stream);
      comm.barrier();
      EXPECT_FALSE(sent.ready());
      comm.barrier();
      sent.wait();
    } else {
      comm.barrier();
      comm.barrier();
      if (comm.global_rank() == 1) {
        comm.recv(View(std::span(data)), 0);
        EXPECT_EQ(data[0], 0);
      }
    }
  });
}

TEST_F(PointToPoint, ARingShiftsOnWorkerStreams) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    const int next = (rank + 1) % ranks();
    const int previous = (rank + ranks() - 1) % ranks();
    const Stream sending = Stream::worker();
    for (const std::int64_t count : {1, 1000, 200'000}) {
      std::vector<std::int64_t> mine(static_cast<std::size_t>(count));
      std::vector<std::int64_t> theirs(mine.size());
      for (int round = 0; round < 10; ++round) {
        std::fill(mine.begin(), mine.end(), 100 * round + rank);
        const Event sent = comm.send(ConstView(std::span(mine)), next, 0, sending);
        comm.recv(View(std::span(theirs)), previous);
        sent.wait();
        ASSERT_EQ(theirs, std::vector<std::int64_t>(theirs.size(), 100 * round + previous));
      }
    }
  });
}

TEST_F(PointToPoint, RunsBesideCollectives) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    const Stream sending = Stream::worker();
    const Stream receiving = Stream::worker();
    std::vector<float> out(300'000, static_cast<float>(rank));
    std::vector<float> in(out.size());
    std::vector<float> sum(50'000);
    for (int round = 0; round < 5; ++round) {
      const Event received =
          comm.recv(View(std::span(in)), (rank + ranks() - 1) % ranks(), 0, receiving);
      const Event sent = comm.send(ConstView(std::span(out)), (rank + 1) % ranks(), 0, sending);
      for (int call = 0; call < 5; ++call) {
        std::fill(sum.begin(), sum.end(), 1.0F);
        comm.all_reduce(View(std::span(sum)));
        ASSERT_EQ(sum, std::vector<float>(sum.size(), static_cast<float>(ranks())));
      }
      received.wait();
      sent.wait();
      const auto previous = static_cast<float>((rank + ranks() - 1) % ranks());
      ASSERT_EQ(in, std::vector<float>(in.size(), previous));
    }
  });
}

TEST_F(PointToPoint, MessagesOfOnePairStayInOrder) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    for (std::int32_t i = 0; i < 300; ++i) {
      std::int32_t value = i;
      if (comm.global_rank() == 0) {
        comm.send(ConstView(&value, 1, DType::i32), 1);
      } else if (comm.global_rank() == 1) {
        value = -1;
        comm.recv(View(&value, 1, DType::i32), 0);
        ASSERT_EQ(value, i);
      }
    }
  });
}

TEST_F(PointToPoint, WhatIsSentToOneIsNotTakenByAnother) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks([](Communicator& comm) {
    // All but rank 0 wait for it at once, and look at its mailbox while it sends to another.
    for (std::int32_t round = 0; round < 500; ++round) {
      for (int to = 1; to < ranks(); ++to) {
        std::int32_t value = 10 * round + to;
        if (comm.global_rank() == 0) {
          comm.send(ConstView(&value, 1, DType::i32), to);
        } else if (comm.global_rank() == to) {
          value = -1;
          comm.recv(View(&value, 1, DType::i32), 0);
          ASSERT_EQ(value, 10 * round + to);
        }
      }
    }
  });
}

struct Sides {
  const char* name;
  DType send_dtype;
  std::int64_t send_count;
  DType recv_dtype;
  std::int64_t recv_count;
};

class PointToPointMismatch : public RankTest, public ::testing::WithParamInterface<Sides> {};

INSTANTIATE_TEST_SUITE_P(
    Sides, PointToPointMismatch,
    ::testing::Values(Sides{"SentTooMuch", DType::f32, 13, DType::f32, 7},
                      Sides{"SentTooLittle", DType::f32, 7, DType::f32, 13},
                      Sides{"SentMuchTooMuch", DType::f32, 400'013, DType::f32, 7},
                      Sides{"SentMuchTooLittle", DType::f32, 7, DType::f32, 400'013},
                      Sides{"SentNothing", DType::f32, 0, DType::f32, 13},
                      Sides{"OtherDType", DType::i32, 13, DType::f32, 13}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(PointToPointMismatch, IsReportedOnBothSides) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const Sides& sides = GetParam();
    const int last = ranks() - 1;  // of another host, where there are several
    const auto expect_both = [&](const MismatchError& error) {
      const std::string what = error.what();
      for (const std::int64_t count : {sides.send_count, sides.recv_count}) {
        EXPECT_NE(what.find("count " + std::to_string(count)), std::string::npos) << what;
      }
      EXPECT_NE(what.find(name_of(sides.send_dtype)), std::string::npos) << what;
      EXPECT_NE(what.find(name_of(sides.recv_dtype)), std::string::npos) << what;
    };
    if (comm.global_rank() == 0) {
      const std::vector<std::byte> data(static_cast<std::size_t>(sides.send_count * 4 + 1));
      try {
        comm.send(ConstView(data.data(), sides.send_count, sides.send_dtype), last);
        ADD_FAILURE() << "send did not throw";
      } catch (const MismatchError& error) {
        expect_both(error);
      }
    } else if (comm.global_rank() == last) {
      const std::vector<std::byte> before(static_cast<std::size_t>(sides.recv_count * 4 + 64),
                                          std::byte{0x5A});
      std::vector<std::byte> data = before;
      try {
        comm.recv(View(data.data(), sides.recv_count, sides.recv_dtype), 0);
        ADD_FAILURE() << "recv did not throw";
      } catch (const MismatchError& error) {
        expect_both(error);
      }
      EXPECT_TRUE(data == before) << "the output was written";
    } else {
      EXPECT_THROW(comm.barrier(), MismatchError);  // it reaches those who had no part in it
    }
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

}  // namespace
}  // namespace tutti::test
