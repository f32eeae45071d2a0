// Tests of what ranks tell other hosts of a failure, whose programs stand in front of MPI.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "support/world.hpp"

namespace tutti::test {

/** Whether a message of MPI's tells of a failure. */
inline bool is_news(const void* data, int count) {
  const auto message =
      unpacked({static_cast<const std::byte*>(data), static_cast<std::size_t>(count)});
  return message && std::holds_alternative<FailureReport>(*message);
}

class NewsTest : public RankTest {
 protected:
  /** A program that initialises MPI itself is told of a loss. */
  static void SetUpTestSuite() {
    int is_initialised = 0;  // so it is if tests are repeated
    MPI_Initialized(&is_initialised);
    if (world().launch != Launch::mpi || is_initialised != 0) return;
    int provided = MPI_THREAD_SINGLE;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  }

  static int host_of(int rank) { return world().hosts[static_cast<std::size_t>(rank)]; }
  static int last() { return ranks() - 1; }
  /** The leader of the last rank's host. */
  static int last_leader() {
    const std::vector<int>& hosts = world().hosts;
    return static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts.back()) - hosts.begin());
  }
  /** The ranks of rank 0's host, which is led by that one. */
  static std::vector<int> first_host() {
    std::vector<int> of_host;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (host_of(rank) == host_of(0)) of_host.push_back(rank);
    }
    return of_host;
  }
};

}  // namespace tutti::test
