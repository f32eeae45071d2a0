// Tests in which every rank of MPI is on a host of its own.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/mpi/channel.hpp"
#include "comm/mpi/session.hpp"
#include "comm/wire.hpp"

namespace tutti::test {

/** One session for all tests of a program. */
class HostEach : public ::testing::Test {
 protected:
  static const std::shared_ptr<mpi::Session>& session() {
    static const std::shared_ptr<mpi::Session> the_session =
        mpi::Session::world(std::chrono::seconds(20));
    return the_session;
  }
  static std::vector<int> everybody() {
    std::vector<int> ranks(static_cast<std::size_t>(session()->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  static void meet() { MPI_Barrier(session()->comm()); }

  /** A channel of all ranks, in some order, whose hosts have not connected yet. */
  static std::unique_ptr<mpi::Channel> new_channel(std::vector<int> members = everybody()) {
    const int context = session()->next_context();
    session()->use_context(context);
    return std::make_unique<mpi::Channel>(session(), std::move(members), context,
                                          std::chrono::seconds(20));
  }

  /** Whose collectives `carrier` carries between hosts. */
  static std::unique_ptr<mpi::Channel> channel_over(const char* carrier) {
    ::setenv("TUTTI_BETWEEN_HOSTS", carrier, 1);
    auto channel = new_channel();
    channel->set_hosts(Layout(everybody()));
    ::unsetenv("TUTTI_BETWEEN_HOSTS");
    return channel;
  }

  /** How many messages of collectives this rank has sent. */
  static std::int64_t messages_of(mpi::Channel& channel) {
    std::int64_t messages = 0;
    for (int rank = 0; rank < channel.size(); ++rank) {
      messages += channel.counts().sent_to(rank)[static_cast<std::size_t>(Wire::Side::collective)];
    }
    return messages;
  }
};

}  // namespace tutti::test
