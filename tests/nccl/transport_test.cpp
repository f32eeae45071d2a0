// The calls of NCCL that each collective makes.
#include <algorithm>
#include <array>
#include <atomic>

#include "nccl/nccl_test.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

TEST_F(NcclTransportTest, RanksJoinWithOneIdAndLeaveInOrder) {
  on_ranks(3, [](NcclTransport&, int) {});
  EXPECT_EQ(count("-1: ncclGetUniqueId"), 1) << "rank 0 makes the id for all";
  for (int rank = 0; rank < 3; ++rank) {
    const std::string prefix = std::to_string(rank) + ": ";
    EXPECT_EQ(count(prefix + "ncclCommInitRankConfig size 3 id the id blocking 1"), 1);
    EXPECT_EQ(count(prefix + "ncclCommDestroy"), 1);
    EXPECT_EQ(count(prefix + "ncclCommAbort"), 0);
  }
}

TEST_F(NcclTransportTest, RanksOfOneProcessKeepToTheirOwnArguments) {
  constexpr const char* kName = "NCCL_P2P_DIRECT_DISABLE";
  ::unsetenv(kName);
  on_ranks(1, [](NcclTransport&, int) {});
  EXPECT_EQ(std::getenv(kName), nullptr);
  on_ranks(2, [](NcclTransport&, int) {});
  EXPECT_STREQ(std::getenv(kName), "1");
  ::unsetenv(kName);
}

TEST_F(NcclTransportTest, ReductionsUseNcclsOperators) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    for (const Reduce reduce :
         {Reduce::sum, Reduce::average, Reduce::min, Reduce::max, Reduce::product}) {
      transport.run(Call::all_reduce(a(10), b(10), reduce));
    }
  });
  const auto calls = calls_of(0);
  ASSERT_EQ(calls.size(), 5U);
  const std::array<int, 5> operators{ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i], "ncclAllReduce " + at_a_ + " " + at_b_ + " 10 type 7 op " +
                            std::to_string(operators[i]) + " stream " + address(&stream));
  }
}

TEST_F(NcclTransportTest, BooleansAreBytesOfWhichOneDecides) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    const View view(a_.data(), 4, DType::boolean, kGpu);
    for (const Reduce reduce :
         {Reduce::land, Reduce::band, Reduce::min, Reduce::lor, Reduce::bor, Reduce::max}) {
      transport.run(Call::all_reduce(view, view, reduce));
    }
  });
  const auto calls = calls_of(0);
  ASSERT_EQ(calls.size(), 6U);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i], "ncclAllReduce " + at_a_ + " " + at_a_ + " 4 type 1 op " +
                            std::to_string(i < 3 ? ncclMin : ncclMax) + " stream " +
                            address(&stream));
  }
}

TEST_F(NcclTransportTest, APremultipliedSumMakesItsOperatorAndEndsIt) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    transport.run(Call::reduce_scatter(a(4), a(4), Reduce::premul_sum(0.5)));
  });
  const std::vector<std::string> expected{
      "ncclRedOpCreatePreMulSum 0.5 type 7 residence 1",
      "ncclReduceScatter " + at_a_ + " " + at_a_ + " 4 type 7 op 100", "ncclRedOpDestroy 100"};
  EXPECT_EQ(calls_of(0), expected);
}

TEST_F(NcclTransportTest, EveryDtypeHasItsName) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const View view(a_.data(), 4, static_cast<DType>(i), kGpu);
      transport.run(Call::broadcast(view, view, 0));
    }
  });
  const auto calls = calls_of(0);
  const std::array<int, kDTypeCount> types{
      ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt32,  ncclInt64, ncclUint8,
      ncclInt8,    ncclFloat16, ncclFloat16, ncclUint32,   ncclUint64, ncclUint8};
  ASSERT_EQ(calls.size(), types.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i], "ncclBroadcast " + at_a_ + " " + at_a_ + " 4 type " +
                            std::to_string(types[i]) + " root 0");
  }
}

TEST_F(NcclTransportTest, RootsReadAndWriteTheirOwnArguments) {
  on_ranks(2, [&](NcclTransport& transport, int) {
    transport.run(Call::reduce(a(4), b(4), Reduce::sum, 1));
    transport.run(Call::broadcast(a(4), b(4), 1));
  });
  EXPECT_EQ(calls_of(0), (std::vector<std::string>{
                             "ncclReduce " + at_a_ + " 0 4 type 7 op 0 root 1",
                             "ncclBroadcast " + at_b_ + " " + at_b_ + " 4 type 7 root 1"}));
  EXPECT_EQ(calls_of(1), (std::vector<std::string>{
                             "ncclReduce " + at_a_ + " 1 4 type 7 op 0 root 1",
                             "ncclBroadcast " + at_a_ + " " + at_b_ + " 4 type 7 root 1"}));
}

TEST_F(NcclTransportTest, AllGatherVIsAGroupOfBroadcasts) {
  const std::array<std::int64_t, 3> counts{2, 0, 3};
  on_ranks(3, [&](NcclTransport& transport, int rank) {
    transport.run(Call::all_gather_v(a(counts[static_cast<std::size_t>(rank)]), b(5), counts));
  });
  const std::string third = address(b_.data() + 2);
  EXPECT_EQ(calls_of(1), (std::vector<std::string>{
                             "ncclBroadcast " + at_b_ + " " + at_b_ + " 2 type 7 root 0",
                             "ncclBroadcast " + third + " " + third + " 3 type 7 root 2"}));
  EXPECT_EQ(calls_of(2)[1], "ncclBroadcast " + at_a_ + " " + third + " 3 type 7 root 2");
  EXPECT_EQ(count("-1: ncclGroupStart"), 3);
  EXPECT_EQ(count("-1: ncclGroupEnd"), 3);
}

TEST_F(NcclTransportTest, AllToAllIsAGroupOfMessages) {
  on_ranks(2,
           [&](NcclTransport& transport, int) { transport.run(Call::all_to_all(a(6), b(6), 2)); });
  EXPECT_EQ(calls_of(1),
            (std::vector<std::string>{"ncclSend " + at_a_ + " 3 type 7 to 0",
                                      "ncclRecv " + at_b_ + " 3 type 7 from 0",
                                      "ncclSend " + address(a_.data() + 3) + " 3 type 7 to 1",
                                      "ncclRecv " + address(b_.data() + 3) + " 3 type 7 from 1"}));
}

TEST_F(NcclTransportTest, NothingIsLaunchedForNoElements) {
  on_ranks(2, [&](NcclTransport& transport, int) {
    const std::array<std::int64_t, 2> none{};
    transport.run(Call::all_reduce(a(0), b(0), Reduce::premul_sum(2.0)));
    transport.run(Call::reduce(a(0), b(0), Reduce::sum, 0));
    transport.run(Call::broadcast(a(0), b(0), 0));
    transport.run(Call::all_gather(a(0), b(0)));
    transport.run(Call::all_gather_v(a(0), b(0), none));
    transport.run(Call::reduce_scatter(a(0), b(0), Reduce::sum));
    transport.run(Call::all_to_all(a(0), b(0), 2));
  });
  EXPECT_TRUE(calls_of(0).empty());
}

TEST_F(NcclTransportTest, WaitsWhileACallIsInProgress) {
  fake_nccl()->answers["ncclCommInitRankConfig"][-1] = ncclInProgress;
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInProgress;
  fake_nccl()->patience = 5;
  on_ranks(2, [&](NcclTransport& transport, int) {
    transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
    transport.run(Call::all_gather(a(4), b(8)));
  });
  EXPECT_EQ(calls_of(0).size(), 2U);
}

TEST_F(NcclTransportTest, AGroupGoesOnWhileACallInsideIsInProgress) {
  fake_nccl()->answers["ncclSend"][-1] = ncclInProgress;
  fake_nccl()->patience = 3;
  on_ranks(2,
           [&](NcclTransport& transport, int) { transport.run(Call::all_to_all(a(6), b(6), 2)); });
  EXPECT_EQ(calls_of(1).size(), 4U);
  EXPECT_EQ(count("-1: ncclGroupEnd"), 2);
}

TEST_F(NcclTransportTest, RanksThatDisagreeAreToldBeforeAnythingIsLaunched) {
  std::atomic<int> told = 0;
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    try {
      transport.run(Call::all_reduce(a(4 + rank), b(4 + rank), Reduce::sum));
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("all_reduce(f32, count 5, sum)"), std::string::npos)
          << error.what();
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(calls_of(0).empty());
}

TEST_F(NcclTransportTest, ComparesAsManyCallsAsItIsTold) {
  ::setenv("TUTTI_GPU_CHECK", "2", 1);
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
    transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
    transport.run(Call::all_reduce(a(4 + rank), b(4 + rank), Reduce::sum));  // nobody looks
  });
  EXPECT_EQ(calls_of(1).size(), 3U);
  ::setenv("TUTTI_GPU_CHECK", "often", 1);
  on_hosts(1, [&](shm::ShmTransport& cpu_transport) {
    EXPECT_THROW(NcclTransport(join(&cpu_transport, gpu_number(0)), &cpu_transport, kGpu),
                 InvalidArgument);
  });
  ::unsetenv("TUTTI_GPU_CHECK");
}

TEST_F(NcclTransportTest, AllocatesRegisteredMemoryAndGivesItBack) {
  on_ranks(2, [&](NcclTransport& transport, int) {
    const Buffer buffer = transport.allocate(100);
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.bytes(), 100);
    EXPECT_EQ(buffer.device(), kGpu);
  });
  EXPECT_EQ(calls_of(1), (std::vector<std::string>{"ncclCommRegister 100", "ncclCommDeregister"}));
  EXPECT_EQ(count("-1: ncclMemFree"), 2);
}

TEST_F(NcclTransportTest, MemoryOutlivesItsCommunicator) {
  Buffer buffer;
  on_ranks(1, [&](NcclTransport& transport, int) { buffer = transport.allocate(100); });
  EXPECT_EQ(count("0: ncclCommDestroy"), 0) << "its memory is still registered";
  buffer = Buffer();
  EXPECT_EQ(count("-1: ncclMemFree"), 1);
  EXPECT_EQ(count("0: ncclCommDestroy"), 1);
}

TEST_F(NcclTransportTest, RegistrationIsNoCondition) {
  fake_nccl()->answers["ncclCommRegister"][-1] = ncclInvalidUsage;
  on_ranks(
      1, [&](NcclTransport& transport, int) { EXPECT_NE(transport.allocate(8).data(), nullptr); });
  EXPECT_EQ(calls_of(0), std::vector<std::string>{"ncclCommRegister 8"});
  EXPECT_EQ(count("-1: ncclMemFree"), 1);
}

TEST_F(NcclTransportTest, AllRanksGetMemoryOrNone) {
  fake_nccl()->answers["ncclMemAlloc"][-1] = ncclUnhandledCudaError;
  on_ranks(2, [&](NcclTransport& transport, int) {
    EXPECT_THROW(transport.allocate(100), SystemError);
    transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));  // which can go on
  });
  EXPECT_EQ(count("-1: ncclMemFree"), 0);
}

TEST_F(NcclTransportTest, MessagesAndBarriers) {
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    if (rank == 0) {
      transport.run(Call::send(a(4), 1));
      transport.run(Call::send(a(0), 1));
    } else {
      transport.run(Call::recv(b(4), 0));
      transport.run(Call::recv(b(0), 0));
    }
    transport.run(Call::barrier());
  });
  EXPECT_EQ(calls_of(0).at(0), "ncclSend " + at_a_ + " 4 type 7 to 1");
  EXPECT_EQ(calls_of(1).at(0), "ncclRecv " + at_b_ + " 4 type 7 from 0");
  for (const int rank : {0, 1}) {  // nothing travels for no elements; a barrier is a sum
    EXPECT_EQ(calls_of(rank).at(1), "ncclCommRegister 4");
    EXPECT_TRUE(calls_of(rank).at(2).starts_with("ncclAllReduce ")) << calls_of(rank).at(2);
  }
}

TEST_F(NcclTransportTest, SplitsThroughNccl) {
  fake_nccl()->patience = 3;
  on_hosts(3, [&](shm::ShmTransport& cpu_transport) {
    NcclTransport transport(join(&cpu_transport, gpu_number(cpu_transport.rank())), &cpu_transport,
                            kGpu);
    const int color = cpu_transport.rank() == 1 ? -1 : 0;
    const auto cpu_part = cpu_transport.split(color, -cpu_transport.rank());
    const auto part = transport.split(color, -cpu_transport.rank(), cpu_part.get());
    EXPECT_EQ(part == nullptr, cpu_transport.rank() == 1);
    cpu_transport.run(Call::barrier());
  });
  EXPECT_EQ(calls_of(1), std::vector<std::string>{"ncclCommSplit color -1 key -1 blocking 1"});
  EXPECT_EQ(count("2: ncclCommSplit color 0 key -2 blocking 1"), 1);
}

TEST_F(NcclTransportTest, AGroupConnectsAnewWithoutTheOthers) {
  on_hosts(3, [&](shm::ShmTransport& cpu_transport) {
    if (cpu_transport.rank() != 1) {
      const auto group = cpu_transport.group(std::array{2, 0});
      NcclTransport transport(join(group.get(), gpu_number(cpu_transport.rank())), group.get(),
                              kGpu);
      transport.use_stream(&stream);
      transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
      group->run(Call::barrier());
    }
    cpu_transport.run(Call::barrier());
  });
  for (const int rank : {0, 1}) {
    const std::string init = std::to_string(rank) + ": ncclCommInitRankConfig size 2 ";
    const auto& calls = fake_nccl()->calls;
    EXPECT_EQ(std::count_if(calls.begin(), calls.end(),
                            [&](const std::string& call) { return call.starts_with(init); }),
              1);
    EXPECT_TRUE(calls_of(rank).at(0).starts_with("ncclAllReduce ")) << calls_of(rank).at(0);
  }
}

}  // namespace
}  // namespace tutti::nccl
