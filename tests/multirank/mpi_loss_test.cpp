// What the ranks of a channel say when one of them is stopped, silent, or gives up.
#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/mpi/channel.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using mpi::Channel;
using mpi::Session;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Ranks = std::vector<int>;

constexpr auto kTimeout = 1000ms;
constexpr auto kStopAfter = 100ms;
constexpr auto kVerdict = 3000ms;  // how long finding the culprit may take after the deadline

/** The tests initialise MPI: they finalise it although sessions have failed, for in the end all
 * ranks are well. */
class MpiUser : public ::testing::Environment {
 public:
  void SetUp() override {
    int provided = 0;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  }
  void TearDown() override { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }
};

[[maybe_unused]] const auto* const kUser =
    ::testing::AddGlobalTestEnvironment(new MpiUser);  // gtest owns it

class MpiLoss : public ::testing::Test {
 protected:
  void SetUp() override {
    if (size() < 2) GTEST_SKIP() << "needs two ranks";
    // The barriers of the tests themselves are not the channel's.
    MPI_Comm_split(MPI_COMM_WORLD, rank() == last() ? 1 : 0, 0, &survivors_);
    pids_.resize(static_cast<std::size_t>(size()));
    const int pid = ::getpid();
    MPI_Allgather(&pid, 1, MPI_INT, pids_.data(), 1, MPI_INT, MPI_COMM_WORLD);
  }
  void TearDown() override {
    if (survivors_ == MPI_COMM_NULL) return;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Comm_free(&survivors_);
  }

  static int rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }
  static int size() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }
  static int last() { return size() - 1; }
  static Ranks everybody() {
    Ranks ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  /** Receives one byte. */
  static void recv_from(Channel& channel, int source) {
    std::byte byte{};
    Batch batch(channel, Wire::Traffic::point_to_point);
    batch.recv(&byte, 1, source);
    batch.wait();
  }
  static void send_to(Channel& channel, int destination) {
    const std::byte byte{};
    Batch batch(channel, Wire::Traffic::point_to_point);
    batch.send(&byte, 1, destination);
    batch.wait();
  }

  /** Runs `action`, which must throw PeerLost naming `culprits` between the two times. */
  static void expect_lost(const Ranks& culprits, Clock::duration at_least, Clock::duration at_most,
                          const std::function<void()>& action) {
    const auto start = Clock::now();
    try {
      action();
      ADD_FAILURE() << "rank " << rank() << " noticed nothing";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), culprits) << error.what();
      const auto took = Clock::now() - start;
      EXPECT_GE(took, at_least);
      EXPECT_LE(took, at_most);
    }
  }

  /** All ranks do `action` again and again; the last one is stopped in the midst of it, and wakes
   * when the others are through. */
  void stop_last_during(const std::function<void(Channel&)>& action) {
    Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
    const int culprit = last();
    const int pid = pids_[static_cast<std::size_t>(culprit)];
    std::jthread stopper;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank() == 0) {
      stopper = std::jthread([pid] {
        std::this_thread::sleep_for(kStopAfter);
        EXPECT_EQ(::kill(pid, SIGSTOP), 0);
      });
    }
    // The culprit sleeps through its own funeral.
    const auto at_most = rank() == culprit ? 60s : kStopAfter + kTimeout + kVerdict;
    expect_lost({culprit}, kStopAfter, at_most, [&] {
      for (;;) action(channel);
    });
    EXPECT_THROW(channel.poll({}), PeerLost) << "the loss was forgotten";
    if (rank() == culprit) return;
    MPI_Barrier(survivors_);
    if (rank() == 0) {
      EXPECT_EQ(::kill(pid, SIGCONT), 0);
    }
  }

  MPI_Comm survivors_ = MPI_COMM_NULL;
  std::vector<int> pids_;
};

TEST_F(MpiLoss, StoppedDuringAgreements) {
  stop_last_during(
      [](Channel& channel) { GroupAgreement(HostGroup(channel, everybody())).agree(1); });
}

TEST_F(MpiLoss, StoppedDuringShortReductions) {
  stop_last_during([](Channel& channel) {
    static std::vector<float> data(10);
    AllReduce(HostGroup(channel, everybody())).run(data.data(), std::ssize(data), DType::f32, {});
  });
}

TEST_F(MpiLoss, StoppedDuringLongReductions) {
  stop_last_during([](Channel& channel) {
    static std::vector<float> data(3'000'000);  // the barriers let MPI go on with it
    AllReduce(HostGroup(channel, everybody())).run(data.data(), std::ssize(data), DType::f32, {});
  });
}

TEST_F(MpiLoss, StoppedDuringGathers) {
  stop_last_during([](Channel& channel) {
    static std::vector<std::byte> out(1'000'000 * static_cast<std::size_t>(size()));
    const auto own =
        std::span(out).subspan(1'000'000 * static_cast<std::size_t>(rank()), 1'000'000);
    all_gather(HostGroup(channel, everybody()), own, out);
  });
}

TEST_F(MpiLoss, TheBlameFollowsTheChain) {
  // Each waits for the next one; the last does not answer. Those who ask first ask those who wait.
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == last()) {
    std::this_thread::sleep_for(kTimeout + kVerdict);
  } else {
    const auto late = 300ms * rank();
    std::this_thread::sleep_for(late);
    expect_lost({last()}, 500ms, kTimeout + kVerdict, [&] { recv_from(channel, rank() + 1); });
  }
}

TEST_F(MpiLoss, WaitsForSomethingElseBelongToTheChain) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  const Ranks awaited{last()};
  if (rank() == 0) {
    expect_lost({last()}, kTimeout, kTimeout + kVerdict, [&] { recv_from(channel, 1); });
  } else if (rank() != last()) {
    expect_lost({last()}, 500ms, kTimeout + kVerdict + 1s, [&] {
      for (const auto start = Clock::now(); Clock::now() - start < kTimeout + kVerdict;) {
        channel.poll(awaited);
        std::this_thread::sleep_for(50ms);
      }
    });
  } else {
    std::this_thread::sleep_for(kTimeout + kVerdict);
  }
}

TEST_F(MpiLoss, TheChainGoesThroughAnotherChannel) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  // Rank 0 waits for rank 1 in the whole, which waits in a part for rank 2, which does not answer.
  const auto session = Session::over(MPI_COMM_WORLD, 20s);
  Channel whole(session, everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    expect_lost({2}, 500ms, kTimeout + kVerdict, [&] { recv_from(whole, 1); });
  } else if (rank() == 1) {
    Channel part(session, {1, 2}, 1, kTimeout);
    expect_lost({1}, 500ms, kTimeout + kVerdict, [&] { recv_from(part, 1); });
  } else {
    std::this_thread::sleep_for(kTimeout + kVerdict);
  }
}

TEST_F(MpiLoss, WhoWaitsForAStrangerIsNotBlamed) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  // Rank 0 knows rank 1 alone, which waits for rank 2 where rank 0 is no member.
  const auto session = Session::over(MPI_COMM_WORLD, 20s);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    Channel near(session, {0, 1}, 0, kTimeout);
    try {
      recv_from(near, 1);
      ADD_FAILURE() << "there is nothing to receive";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.reason(), "it has destroyed its communicator");
    }
  } else if (rank() == 1) {
    auto near = std::make_unique<Channel>(session, Ranks{0, 1}, 0, kTimeout);
    Channel far(session, {1, 2}, 1, kTimeout);
    expect_lost({1}, 500ms, kTimeout + kVerdict, [&] { recv_from(far, 1); });
    Channel::leave(std::move(near));
  } else {
    std::this_thread::sleep_for(kTimeout + kVerdict);
  }
}

TEST_F(MpiLoss, ACircleThroughSeveralChannelsIsTold) {
  if (size() != 3) GTEST_SKIP() << "needs three ranks";
  const auto session = Session::over(MPI_COMM_WORLD, 20s);
  // Each waits for the next in a channel of the two, in which it is the first.
  const int next = (rank() + 1) % size();
  Channel channel(session, {rank(), next}, rank(), kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  expect_lost({1}, kTimeout, kTimeout + kVerdict, [&] { recv_from(channel, 1); });
}

TEST_F(MpiLoss, ACircleIsToldFromAStoppedRank) {
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  try {
    recv_from(channel, (rank() + 1) % size());
    ADD_FAILURE() << "there is nothing to receive";
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find("wait for each other"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.ranks().size(), 1U);
  }
  EXPECT_LE(Clock::now() - start, kTimeout + kVerdict);
}

TEST_F(MpiLoss, WhoGoesOnWithOtherCallsKeepsNobodyWaitingForEver) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, 2 * kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto exchange = [&](int first, int second) {
    const Channel::CallScope call;
    if (rank() == first) send_to(channel, second);
    if (rank() == second) recv_from(channel, first);
  };
  expect_lost({1}, 2 * kTimeout, 4 * kTimeout + kVerdict, [&] {
    if (rank() != 1 && rank() != 2) recv_from(channel, 1);
    for (;;) {
      exchange(1, 2);
      exchange(2, 1);
      channel.poll({});
    }
  });
}

TEST_F(MpiLoss, OneLongCallPutsADeadlineOff) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) recv_from(channel, 1);
  if (rank() == 1 || rank() == 2) {
    const Channel::CallScope call;
    for (int i = 0; i < 250; ++i) {
      std::this_thread::sleep_for(10ms);
      if (rank() == 1) send_to(channel, 2);
      if (rank() == 2) recv_from(channel, 1);
    }
  }
  if (rank() == 1) send_to(channel, 0);
}

TEST_F(MpiLoss, WhoseHeartbeatMovesIsNotLost) {
  if (size() != 2) GTEST_SKIP() << "two ranks are enough";
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  std::uint32_t beats = 0;
  channel.set_heartbeat([&beats](int /*rank*/) { return ++beats; });
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) return recv_from(channel, 1);
  std::this_thread::sleep_for(kTimeout + 1s);  // it answers nobody
  send_to(channel, 0);
}

TEST_F(MpiLoss, TwoSilentRanksAreBothNamed) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  const Ranks silent{last() - 1, last()};
  if (rank() >= silent.front()) {
    std::this_thread::sleep_for(kTimeout + kVerdict);
  } else {
    expect_lost(silent, 500ms, kTimeout + kVerdict, [&] {
      std::array<std::byte, 2> bytes{};
      Batch batch(channel, Wire::Traffic::point_to_point);
      for (std::size_t i = 0; i < silent.size(); ++i) batch.recv(&bytes[i], 1, silent[i]);
      batch.wait();
    });
  }
}

TEST_F(MpiLoss, WhoComesDuringTheInquiryIsNotLost) {
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  const HostGroup group(channel, everybody());
  GroupAgreement agreement(group);
  if (rank() == last()) std::this_thread::sleep_for(kTimeout + 500ms);
  EXPECT_TRUE(agreement.agree(1));
  EXPECT_TRUE(agreement.agree(2));
}

TEST_F(MpiLoss, WhoGivesUpTellsTheOthersAtOnce) {
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, 20s);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    const int self = 0;
    channel.announce_lost({&self, 1}, "has better things to do");
    channel.announce_lost({&self, 1}, "says so twice");
  } else {
    expect_lost({0}, 0ms, 10s, [&] { recv_from(channel, (rank() + 1) % size()); });
    try {
      channel.poll({});
      ADD_FAILURE() << "the loss was forgotten";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.reason(), "has better things to do");
    }
  }
}

TEST_F(MpiLoss, AMessageThatIsTooLongIsItsSendersFault) {
  Channel channel(Session::over(MPI_COMM_WORLD, 20s), everybody(), 0, kTimeout);
  std::array<std::byte, 100> bytes{};
  if (rank() == 0) {
    Batch batch(channel, Wire::Traffic::point_to_point);
    batch.send(bytes.data(), 100, 1);
    batch.wait();
  } else if (rank() == 1) {
    expect_lost({0}, 0ms, kTimeout, [&] {
      Batch batch(channel, Wire::Traffic::point_to_point);
      batch.recv(bytes.data(), 50, 0);
      batch.wait();
    });
  }
}

TEST_F(MpiLoss, WhatTheIdleFunctionThrowsEndsTheWait) {
  struct Enough {};
  auto session = Session::over(MPI_COMM_WORLD, 20s);
  Channel channel(session, everybody(), 0, 20s);
  int calls = 0;
  channel.set_idle({[&calls](Wire::Side) {
                      if (++calls == 5) throw Enough();
                    },
                    {}});
  EXPECT_THROW(recv_from(channel, (rank() + 1) % size()), Enough);
  EXPECT_EQ(calls, 5);
  // The receive was cancelled: a late message finds nobody's memory.
  Channel other(session, everybody(), 1, 20s);
  EXPECT_TRUE(GroupAgreement(HostGroup(other, everybody())).agree(1))
      << "channels of a session fail on their own";
  send_to(channel, (rank() + size() - 1) % size());
  EXPECT_TRUE(GroupAgreement(HostGroup(other, everybody())).agree(2));
}

}  // namespace
}  // namespace tutti::test
