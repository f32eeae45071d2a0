// The calls of NCCL that operations on blocks of each rank, and messages between two ranks, make.
#include <array>
#include <cstdint>

#include "nccl/nccl_test.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

using Calls = std::vector<std::string>;

constexpr std::array<std::int64_t, 3> kCounts{2, 0, 3};

std::int64_t count_of(int rank) { return kCounts[static_cast<std::size_t>(rank)]; }

TEST_F(NcclTransportTest, AGatherIsAGroupOfMessagesToItsRoot) {
  on_ranks(3, [&](NcclTransport& transport, int) { transport.run(Call::gather(a(4), b(12), 1)); });
  EXPECT_EQ(calls_of(0), Calls{"ncclSend " + at_a_ + " 4 type 7 to 1"});
  EXPECT_EQ(calls_of(2), Calls{"ncclSend " + at_a_ + " 4 type 7 to 1"});
  EXPECT_EQ(calls_of(1),
            (Calls{"ncclRecv " + at_b_ + " 4 type 7 from 0", "ncclSend " + at_a_ + " 4 type 7 to 1",
                   "ncclRecv " + address(b_.data() + 4) + " 4 type 7 from 1",
                   "ncclRecv " + address(b_.data() + 8) + " 4 type 7 from 2"}));
  EXPECT_EQ(count("-1: ncclGroupStart"), 3);
  EXPECT_EQ(count("-1: ncclGroupEnd"), 3);
}

TEST_F(NcclTransportTest, AGatherVLeavesOutThoseThatHaveNothing) {
  on_ranks(3, [&](NcclTransport& transport, int rank) {
    transport.run(Call::gather_v(a(count_of(rank)), b(5), kCounts, 0));
  });
  EXPECT_TRUE(calls_of(1).empty());
  EXPECT_EQ(calls_of(0),
            (Calls{"ncclSend " + at_a_ + " 2 type 7 to 0", "ncclRecv " + at_b_ + " 2 type 7 from 0",
                   "ncclRecv " + address(b_.data() + 2) + " 3 type 7 from 2"}));
}

TEST_F(NcclTransportTest, AScatterIsAGroupOfMessagesFromItsRoot) {
  on_ranks(2, [&](NcclTransport& transport, int) { transport.run(Call::scatter(a(8), b(4), 0)); });
  EXPECT_EQ(calls_of(0),
            (Calls{"ncclSend " + at_a_ + " 4 type 7 to 0", "ncclRecv " + at_b_ + " 4 type 7 from 0",
                   "ncclSend " + address(a_.data() + 4) + " 4 type 7 to 1"}));
  EXPECT_EQ(calls_of(1), Calls{"ncclRecv " + at_b_ + " 4 type 7 from 0"});
}

TEST_F(NcclTransportTest, AScatterVLeavesOutThoseThatGetNothing) {
  on_ranks(3, [&](NcclTransport& transport, int rank) {
    transport.run(Call::scatter_v(a(5), b(count_of(rank)), kCounts, 2));
  });
  EXPECT_EQ(calls_of(0), Calls{"ncclRecv " + at_b_ + " 2 type 7 from 2"});
  EXPECT_TRUE(calls_of(1).empty());
  EXPECT_EQ(calls_of(2), (Calls{"ncclSend " + at_a_ + " 2 type 7 to 0",
                                "ncclSend " + address(a_.data() + 2) + " 3 type 7 to 2",
                                "ncclRecv " + at_b_ + " 3 type 7 from 2"}));
}

TEST_F(NcclTransportTest, AllToAllVSendsToEachWhatItExpects) {
  const std::array<std::array<std::int64_t, 2>, 2> leaving{{{1, 3}, {0, 2}}};
  const std::array<std::array<std::int64_t, 2>, 2> arriving{{{1, 0}, {3, 2}}};
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    transport.run(
        Call::all_to_all_v(a(rank == 0 ? 4 : 2), leaving[at], b(rank == 0 ? 1 : 5), arriving[at]));
  });
  EXPECT_EQ(calls_of(0),
            (Calls{"ncclSend " + at_a_ + " 1 type 7 to 0", "ncclRecv " + at_b_ + " 1 type 7 from 0",
                   "ncclSend " + address(a_.data() + 1) + " 3 type 7 to 1"}));
  EXPECT_EQ(calls_of(1),
            (Calls{"ncclRecv " + at_b_ + " 3 type 7 from 0", "ncclSend " + at_a_ + " 2 type 7 to 1",
                   "ncclRecv " + address(b_.data() + 3) + " 2 type 7 from 1"}));
}

TEST_F(NcclTransportTest, AllToAllVThatDoesNotFitIsToldBeforeAnythingIsLaunched) {
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    const std::array<std::int64_t, 2> counts{1 + rank, 1};
    EXPECT_THROW(transport.run(Call::all_to_all_v(a(2 + rank), counts, b(2 + rank), counts)),
                 MismatchError);
  });
  EXPECT_TRUE(calls_of(0).empty());
}

TEST_F(NcclTransportTest, ReduceScatterVIsAGroupOfReductions) {
  on_ranks(3, [&](NcclTransport& transport, int rank) {
    transport.run(Call::reduce_scatter_v(a(5), b(count_of(rank)), kCounts, Reduce::max));
  });
  const std::string third = address(a_.data() + 2);
  EXPECT_EQ(calls_of(0), (Calls{"ncclReduce " + at_a_ + " 1 2 type 7 op 2 root 0",
                                "ncclReduce " + third + " 0 3 type 7 op 2 root 2"}));
  EXPECT_EQ(calls_of(2), (Calls{"ncclReduce " + at_a_ + " 0 2 type 7 op 2 root 0",
                                "ncclReduce " + third + " 1 3 type 7 op 2 root 2"}));
  EXPECT_EQ(count("-1: ncclGroupEnd"), 3);
}

TEST_F(NcclTransportTest, ScansAreRefusedByName) {
  on_ranks(2, [&](NcclTransport& transport, int) {
    for (const Call& call :
         {Call::scan(a(4), b(4), Reduce::sum), Call::exscan(a(4), b(4), Reduce::sum)}) {
      try {
        transport.run(call);
        ADD_FAILURE() << "was not refused";
      } catch (const BackendUnavailable& error) {
        EXPECT_NE(std::string(error.what()).find(name_of(call.operation)), std::string::npos)
            << error.what();
      }
    }
  });
  EXPECT_TRUE(calls_of(0).empty());
}

TEST_F(NcclTransportTest, AnExchangeIsAGroupOfItsMessages) {
  std::array<Received, 2> received;
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    const std::array<Message, 4> messages{
        Message::send(a(4), 1 - rank), Message::send(a(0), rank),
        Message::recv(b(4), 1 - rank, 0, &received[static_cast<std::size_t>(rank)]),
        Message::recv(b(0), rank)};
    transport.run(Call::exchange(messages));
  });
  for (const int rank : {0, 1}) {
    const std::string other = std::to_string(1 - rank);
    EXPECT_EQ(calls_of(rank), (Calls{"ncclSend " + at_a_ + " 4 type 7 to " + other,
                                     "ncclRecv " + at_b_ + " 4 type 7 from " + other}));
    EXPECT_EQ(received[static_cast<std::size_t>(rank)].source, 1 - rank);
    EXPECT_EQ(received[static_cast<std::size_t>(rank)].tag, 0);
  }
  EXPECT_EQ(count("-1: ncclGroupStart"), 2);
  EXPECT_EQ(count("-1: ncclGroupEnd"), 2);
}

TEST_F(NcclTransportTest, AnExchangeIsNotComparedWithTheOtherRanks) {
  on_ranks(3, [&](NcclTransport& transport, int rank) {
    if (rank == 2) return;  // it takes no part
    const std::array<Message, 2> messages{Message::send(a(4), 1 - rank),
                                          Message::recv(b(4), 1 - rank)};
    transport.run(Call::exchange(messages));
  });
  EXPECT_EQ(calls_of(1).size(), 2U);
}

}  // namespace
}  // namespace tutti::nccl
