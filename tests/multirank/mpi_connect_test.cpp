// What ranks send over MPI while their hosts connect: each is on a host of its own.
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "comm/layout.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/whole.hpp"
#include "multirank/host_each.hpp"

namespace {

int g_sends = 0;

}  // namespace

/** This stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  ++g_sends;
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
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
  static Connected connect(Whole* whole = nullptr) {
    auto channel = new_channel();
    meet();
    g_sends = 0;
    channel->set_hosts(Layout(everybody()), whole);
    const int messages = g_sends;
    EXPECT_TRUE(channel->has_streams());
    meet();
    return {std::move(channel), messages};
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
  const std::vector<int> members = everybody();
  auto [channel, messages] = connect();
  for (const auto makers : {Whole::Makers::all, Whole::Makers::some}) {
    Whole whole(*channel, members, makers, [] {});
    auto [part, sent] = connect(&whole);
    EXPECT_EQ(sent, makers == Whole::Makers::all ? 0 : messages);
    EXPECT_FALSE(whole.has_failed());
    Channel::leave(std::move(part));
  }
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
