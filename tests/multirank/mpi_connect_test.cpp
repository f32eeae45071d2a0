// What ranks send over MPI while their hosts connect: each is on a host of its own.
#include <gtest/gtest.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "comm/batch.hpp"
#include "comm/failures/control_message.hpp"
#include "comm/layout.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/whole.hpp"
#include "multirank/host_each.hpp"

namespace {

int g_sends = 0;
thread_local int g_sleeps = 0;
bool g_has_fast_wire = true;                // or this rank cannot test it
thread_local std::vector<int> g_sent_over;  // sockets that were given messages, in this order

}  // namespace

/** This stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  ++g_sends;
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

/** And this in front of the system's, for std::this_thread::sleep_for(). */
extern "C" int nanosleep(const timespec* requested_time, timespec* remaining) {
  ++g_sleeps;
  return ::clock_nanosleep(CLOCK_REALTIME, 0, requested_time, remaining);
}

/** And this: a connection whose bytes may be spread over time tests no wire. */
extern "C" int setsockopt(int fd, int level, int optname, const void* optval,
                          socklen_t optlen) noexcept {
  if (!g_has_fast_wire && level == IPPROTO_TCP && optname == TCP_CONGESTION) return -1;
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, optname, optval, optlen));
}

/** And this: by which connections something is sent. */
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  g_sent_over.push_back(fd);
  return ::syscall(SYS_sendmsg, fd, message, flags);
}

namespace tutti::mpi {
namespace {

class MpiConnect : public test::HostEach {
 protected:
  void SetUp() override { ::setenv("TUTTI_BETWEEN_HOSTS", "tcp", 1); }
  void TearDown() override { ::unsetenv("TUTTI_BETWEEN_HOSTS"); }

  /** A channel, and how many messages over MPI its hosts take to connect. */
  struct Connected {
    std::unique_ptr<Channel> channel;
    int messages;
  };
  static Connected connect(const std::vector<int>& members = everybody(), Whole* whole = nullptr) {
    auto channel = new_channel(members);
    meet();
    g_sends = 0;
    channel->set_hosts(Layout(everybody()), whole);
    const int messages = g_sends;
    EXPECT_TRUE(channel->has_streams());
    meet();
    return {std::move(channel), messages};
  }
  /** A message from each rank to the next one, over connections; `meanwhile` before it is sent. */
  static void pass_round(
      Channel& channel, const std::function<void()>& meanwhile = [] {}) {
    const int size = channel.size();
    const int before = (channel.rank() + size - 1) % size;
    const int own = channel.rank();
    int heard = -1;
    Batch batch(channel, Wire::Traffic::collective);
    batch.recv(&heard, sizeof heard, before);
    meanwhile();
    batch.send(&own, sizeof own, (own + 1) % size);
    batch.wait();
    EXPECT_EQ(heard, before);
    meet();
  }
};

/** Addresses, what both have, and whether each has all: Open MPI 4.1 does not survive two in a row
 * to a process that has died. */
TEST_F(MpiConnect, OneMessageAtATimeGoesToEachHost) {
  auto [channel, messages] = connect();
  EXPECT_EQ(messages, 3 * (session()->size() - 1));
  Channel::leave(std::move(channel));
}

TEST_F(MpiConnect, PartsUseConnectionsOfTheWholeIfAllMakeThem) {
  auto [channel, messages] = connect();
  std::vector<int> members = everybody();
  for (const bool is_reversed : {false, true}) {  // as split() has them, by its keys
    if (is_reversed) std::reverse(members.begin(), members.end());
    for (const auto makers : {Whole::Makers::all, Whole::Makers::some}) {
      Whole whole(*channel, members, makers, [] {});
      auto [part, sent] = connect(members, &whole);
      EXPECT_EQ(sent, makers == Whole::Makers::all ? 0 : messages);
      EXPECT_FALSE(whole.has_failed());
      pass_round(*part);
      Channel::leave(std::move(part));
    }
  }
  Channel::leave(std::move(channel));
}

/** Links that have to carry the same at the same time are not all begun with the first host's. */
TEST_F(MpiConnect, WhatIsHeldLeavesForTheNextHostFirst) {
  auto [channel, messages] = connect();
  pass_round(*channel, [] { g_sent_over.clear(); });
  ASSERT_EQ(g_sent_over.size(), 1U);
  const int to_next = g_sent_over.front();
  g_sent_over.clear();
  const int own = channel->rank();
  std::vector<int> heard(everybody().size(), own);
  Batch batch(*channel, Wire::Traffic::collective);
  {
    const Held together(*channel);
    for (const int rank : everybody()) {
      if (rank == own) continue;
      batch.recv(&heard[static_cast<std::size_t>(rank)], sizeof own, rank);
      batch.send(&own, sizeof own, rank);
    }
    EXPECT_TRUE(g_sent_over.empty());
  }
  ASSERT_EQ(g_sent_over.size(), heard.size() - 1);
  EXPECT_EQ(g_sent_over.front(), to_next);
  batch.wait();
  EXPECT_EQ(heard, everybody());
  meet();
  Channel::leave(std::move(channel));
}

/** Who waits for something else sleeps. */
TEST_F(MpiConnect, APauseOfACollectiveNapsUntilSomethingComesOverItsConnections) {
  auto [channel, messages] = connect();
  pass_round(*channel, [&channel = *channel] {
    for (const auto side : {Wire::Side::collective, Wire::Side::recv}) {
      g_sleeps = 0;
      channel.pause(std::chrono::seconds(1), side);
      EXPECT_EQ(g_sleeps, side == Wire::Side::collective ? 0 : 1);
    }
  });
  Channel::leave(std::move(channel));
}

/** Which works beside the program, that may wait for nothing else. */
TEST_F(MpiConnect, AThreadOfTheLibrarysNapsSoonerThanOneOfTheProgram) {
  const auto channel = new_channel();
  const auto naps = [&](Wire::Clock::duration still) {
    g_sleeps = 0;
    channel->pause(still, Wire::Side::collective);
    return g_sleeps == 1;
  };
  EXPECT_FALSE(naps(kMpiWait.spin));
  EXPECT_TRUE(naps(kSpinOfCaller));
  start_thread("a test", [&naps] {
    EXPECT_FALSE(naps({}));
    EXPECT_TRUE(naps(kMpiWait.spin));
  }).join();
  meet();
}

/** Each tests its own wire, to the next one; a part takes it to be as the whole has found it. */
TEST_F(MpiConnect, OneWireThatIsNotFastIsSoForAllAndForTheirParts) {
  const bool have_test = session()->size() > 2;
  g_has_fast_wire = session()->rank() != 1;
  auto [channel, messages] = connect();
  g_has_fast_wire = true;
  EXPECT_EQ(channel->knows_wire(), have_test);
  EXPECT_FALSE(channel->is_fast());
  const std::vector<int> members = everybody();
  Whole whole(*channel, members, Whole::Makers::all, [] {});
  EXPECT_EQ(whole.has_fast_wire().has_value(), have_test);
  auto [part, sent] = connect(members, &whole);
  EXPECT_EQ(part->knows_wire(), have_test);
  EXPECT_FALSE(part->is_fast());
  Channel::leave(std::move(part));
  Channel::leave(std::move(channel));
}

TEST_F(MpiConnect, WhoseProcessHasEndedIsSentNothing) {
  const auto own = Session::over(MPI_COMM_WORLD, std::chrono::seconds(20));
  const int other = (own->rank() + 1) % own->size();
  const auto messenger = own->messenger(0);
  own->note_ended(other);
  g_sends = 0;
  messenger->send(Enquiry{}, other);
  EXPECT_EQ(g_sends, 0);
  meet();
}

}  // namespace
}  // namespace tutti::mpi
