// What happens when calls of NCCL fail, or never end, and when ranks cannot meet.
#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "comm/nccl/comm.hpp"
#include "nccl/nccl_test.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::nccl {
namespace {

TEST_F(NcclTransportTest, ACallThatNeverEndsBecomesPeerLost) {
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInProgress;
  fake_nccl()->patience = -1;
  std::atomic<int> lost = 0;
  on_hosts(
      2,
      [&](shm::ShmTransport& cpu_transport) {
        NcclTransport transport(join(&cpu_transport, gpu_number(cpu_transport.rank())),
                                &cpu_transport, kGpu);
        try {
          transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
        } catch (const PeerLost& error) {
          EXPECT_NE(std::string(error.what()).find("did not answer within 2.0 s"),
                    std::string::npos)
              << error.what();
          ++lost;
        }
        transport.cancel();
      },
      milliseconds(2000));
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(count("0: ncclCommAbort") + count("1: ncclCommAbort"), 2) << "each rank, once";
  EXPECT_EQ(count("0: ncclCommDestroy"), 0);
}

TEST_F(NcclTransportTest, AnInitThatNeverEndsIsGivenUp) {
  fake_nccl()->answers["ncclCommInitRankConfig"][-1] = ncclInProgress;
  fake_nccl()->patience = -1;
  std::atomic<int> lost = 0;
  on_hosts(
      2,
      [&](shm::ShmTransport& cpu_transport) {
        try {
          join(&cpu_transport, gpu_number(cpu_transport.rank()));
        } catch (const PeerLost&) {
          ++lost;
        }
      },
      milliseconds(2000));
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(count("0: ncclCommAbort") + count("1: ncclCommAbort"), 2) << "each rank, once";
  EXPECT_EQ(fake_nccl()->alive, 0) << "the last one waits for the ends";
}

TEST_F(NcclTransportTest, AnInitDoesNotBeginAfterItWasAborted) {
  std::latch given_up(1);
  std::latch ended(1);
  std::atomic<bool> first = true;
  const OnGpu late = [&](const std::function<void()>& action) {
    if (!first.exchange(false)) return action();
    given_up.wait();
    action();
    ended.count_down();
  };
  on_hosts(1, [&](shm::ShmTransport& cpu_transport) {
    const InterruptCheck check([&] {
      if (!first) throw std::runtime_error("enough");
    });
    EXPECT_THROW(Comm(Library::open(), &cpu_transport, ncclUniqueId{}, late), std::runtime_error);
  });
  given_up.count_down();
  ended.wait();
  EXPECT_EQ(fake_nccl()->alive, 0) << "nobody would end it";
}

TEST_F(NcclTransportTest, ASplitThatFailsSaysSo) {
  fake_nccl()->answers["ncclCommSplit"][-1] = ncclInvalidUsage;
  on_hosts(1, [&](shm::ShmTransport& cpu_transport) {
    NcclTransport transport(join(&cpu_transport, gpu_number(0)), &cpu_transport, kGpu);
    EXPECT_THROW(transport.split(0, 0, &cpu_transport), Error);
  });
}

TEST_F(NcclTransportTest, ACallThatNeverEndsReturnsWhereAnotherThreadAborts) {
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInProgress;
  fake_nccl()->patience = -1;
  on_hosts(1, [&](shm::ShmTransport& cpu_transport) {
    NcclTransport transport(join(&cpu_transport, gpu_number(0)), &cpu_transport, kGpu);
    std::thread other([&] { transport.cancel(); });
    EXPECT_THROW(transport.run(Call::all_reduce(a(4), b(4), Reduce::sum)), CommunicationError);
    other.join();
  });
}

TEST_F(NcclTransportTest, ACallerCanEndAWait) {
  fake_nccl()->answers["ncclCommSplit"][-1] = ncclInProgress;
  fake_nccl()->patience = -1;
  on_hosts(1, [&](shm::ShmTransport& cpu_transport) {
    NcclTransport transport(join(&cpu_transport, gpu_number(0)), &cpu_transport, kGpu);
    {
      const InterruptCheck check([] { throw std::runtime_error("enough"); });
      EXPECT_THROW(transport.split(0, 0, &cpu_transport), std::runtime_error);
    }
    transport.cancel();
  });
  EXPECT_EQ(count("0: ncclCommAbort"), 1);
}

TEST_F(NcclTransportTest, ALoneMessageIsOnItsStreamWhenItsCallReturns) {
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  fake_nccl()->version = 22403;
  std::atomic<int> launched = 0;
  fake_nccl()->enqueue = [&](int, cudaStream_t, const FakeNccl::Ended&) { ++launched; };
  std::latch counted(2);
  on_ranks(2, [&](NcclTransport& transport, int rank) {
    transport.run(rank == 0 ? Call::send(a(4), 1) : Call::recv(b(4), 0));
    counted.arrive_and_wait();
    EXPECT_EQ(launched, 2);
  });
  ::unsetenv("NCCL_COMM_BLOCKING");
}

TEST_F(NcclTransportTest, OnOneThreadTheCallerLooksAfterTheOthersDuringACall) {
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInProgress;
  fake_nccl()->patience = 500;
  on_hosts(2, [&](shm::ShmTransport& whole) {
    OneThreaded cpu_transport(&whole);
    NcclTransport transport(join(&cpu_transport, gpu_number(whole.rank())), &cpu_transport, kGpu);
    cpu_transport.pulses = 0;
    transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
    EXPECT_GT(cpu_transport.pulses, 0);
    EXPECT_EQ(cpu_transport.wrong_pulses, 0);
    whole.run(Call::barrier());
  });
}

TEST_F(NcclTransportTest, OnOneThreadACallThatNeverEndsBecomesPeerLost) {
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInProgress;
  fake_nccl()->patience = -1;
  std::atomic<int> lost = 0;
  on_hosts(
      2,
      [&](shm::ShmTransport& whole) {
        OneThreaded cpu_transport(&whole);
        NcclTransport transport(join(&cpu_transport, gpu_number(whole.rank())), &cpu_transport,
                                kGpu);
        try {
          transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
        } catch (const PeerLost&) {
          ++lost;
        }
        EXPECT_EQ(cpu_transport.wrong_pulses, 0);
        transport.cancel();
      },
      milliseconds(1000));
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(count("0: ncclCommAbort") + count("1: ncclCommAbort"), 2) << "each rank, once";
}

TEST_F(NcclTransportTest, AnErrorSaysWhatNcclSays) {
  fake_nccl()->answers["ncclAllReduce"][-1] = ncclInvalidUsage;
  on_ranks(1, [&](NcclTransport& transport, int) {
    try {
      transport.run(Call::all_reduce(a(4), b(4), Reduce::sum));
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "ncclAllReduce: some error (details)");
    }
  });
}

TEST_F(NcclTransportTest, AGroupIsClosedWhateverFailsInside) {
  fake_nccl()->answers["ncclRecv"][-1] = ncclInternalError;
  on_ranks(1, [&](NcclTransport& transport, int) {
    EXPECT_THROW(transport.run(Call::all_to_all(a(4), b(4), 1)), Error);
  });
  EXPECT_EQ(count("-1: ncclGroupEnd"), 1);
}

TEST_F(NcclTransportTest, AnErrorBehindAFailedRankIsThatRanks) {
  std::latch joined(2);
  on_hosts(2, [&](shm::ShmTransport& cpu_transport) {
    NcclTransport transport(join(&cpu_transport, gpu_number(cpu_transport.rank())), &cpu_transport,
                            kGpu);
    joined.arrive_and_wait();  // or one that aborts would end the other's join
    if (cpu_transport.rank() == 1) {
      cpu_transport.abort("out of paper");
      return;
    }
    fake_nccl()->async = ncclRemoteError;
    try {
      transport.poll();
      ADD_FAILURE() << "did not throw";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1});
      EXPECT_EQ(error.reason(), "out of paper");
    }
    fake_nccl()->async = ncclSuccess;
  });
}

TEST_F(NcclTransportTest, AnErrorThatNobodyElseKnowsIsNccls) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    transport.poll();
    fake_nccl()->async = ncclRemoteError;
    try {
      transport.poll();
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "a collective on GPUs: remote error (details)");
    }
    fake_nccl()->async = ncclSuccess;
  });
}

TEST_F(NcclTransportTest, AbortsOnceAndRefusesWhatComesAfter) {
  on_ranks(1, [&](NcclTransport& transport, int) {
    transport.cancel();
    transport.cancel();
    EXPECT_THROW(transport.run(Call::all_reduce(a(4), b(4), Reduce::sum)), CommunicationError);
    EXPECT_THROW(transport.poll(), CommunicationError);
  });
  EXPECT_EQ(count("0: ncclCommAbort"), 1);
  EXPECT_EQ(count("0: ncclCommDestroy"), 0);
}

TEST_F(NcclTransportTest, AGpuThatCannotBeUsedIsEverybodysError) {
  std::atomic<int> told = 0;
  on_hosts(2, [&](shm::ShmTransport& cpu_transport) {
    OwnGpu gpu = gpu_number(cpu_transport.rank());
    if (cpu_transport.rank() == 1) gpu.problem = "it is out of paper";
    try {
      join(&cpu_transport, gpu);
    } catch (const BackendUnavailable& error) {
      EXPECT_STREQ(error.what(), cpu_transport.rank() == 1
                                     ? "it is out of paper"
                                     : "rank 1 cannot use its GPU: it is out of paper");
      ++told;
    }
    cpu_transport.run(Call::barrier());
  });
  EXPECT_EQ(told, 2);
}

TEST_F(NcclTransportTest, RanksThatCompareOtherNumbersOfCallsAreRefused) {
  std::atomic<int> told = 0;
  on_hosts(2, [&](shm::ShmTransport& cpu_transport) {
    OwnGpu gpu = gpu_number(cpu_transport.rank());
    gpu.compared = 5 + cpu_transport.rank();
    try {
      join(&cpu_transport, gpu);
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("TUTTI_GPU_CHECK"), std::string::npos);
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

TEST_F(NcclTransportTest, AnIdThatCannotBeMadeIsEverybodysError) {
  fake_nccl()->answers["ncclGetUniqueId"][-1] = ncclSystemError;
  std::atomic<int> told = 0;
  on_hosts(2, [&](shm::ShmTransport& cpu_transport) {
    try {
      join(&cpu_transport, gpu_number(cpu_transport.rank()));
    } catch (const BackendUnavailable& error) {
      EXPECT_STREQ(error.what(), "ncclGetUniqueId on rank 0: some error");
      ++told;
    }
    cpu_transport.run(Call::barrier());  // the ranks can go on without GPUs
  });
  EXPECT_EQ(told, 2);
}

TEST_F(NcclTransportTest, AnOldLibraryIsEverybodysError) {
  fake_nccl()->version = 22105;
  std::atomic<int> told = 0;
  on_hosts(2, [&](shm::ShmTransport& cpu_transport) {
    try {
      join(&cpu_transport, gpu_number(cpu_transport.rank()));
    } catch (const BackendUnavailable&) {
      ++told;
    }
    cpu_transport.run(Call::barrier());
  });
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(fake_nccl()->calls.empty());
}

TEST_F(NcclTransportTest, ThreadsThatShareAGpuAreRefused) {
  std::atomic<int> told = 0;
  on_hosts(3, [&](shm::ShmTransport& cpu_transport) {
    try {
      join(&cpu_transport, gpu_number(cpu_transport.rank() / 2));
    } catch (const BackendUnavailable& error) {
      EXPECT_NE(std::string(error.what()).find("ranks 0 and 1"), std::string::npos);
      ++told;
    }
    cpu_transport.run(Call::barrier());
  });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace tutti::nccl
