// A rank is lost for the store alone, which has seen its connections end: whoever waits there hears
// of it first, and tells the ranks that wait for something else.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "multirank/news.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/store.hpp"

namespace {

std::atomic<bool> g_tells_nobody = false;  // this rank, as if it were stopped

}  // namespace

/** Stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (g_tells_nobody && tutti::test::is_news(data, count)) destination = MPI_PROC_NULL;
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/** The connections of this process over TCP. */
std::set<int> connections() {
  std::set<int> found;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(one.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const bool is_connected =
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    if (is_connected && (peer.ss_family == AF_INET || peer.ss_family == AF_INET6)) {
      found.insert(descriptor);
    }
  }
  return found;
}

class StoreNews : public NewsTest {
 protected:
  /** The last rank is lost for the store. `finders`, one after the other, ask that, of whom all but
   * the last tell nobody; the other ranks are in a barrier. */
  void expect_all_hear(const std::vector<int>& finders) {
    on_ranks(
        [&](Communicator& comm) {
          const int rank = comm.global_rank();
          std::optional<Communicator> child = comm.split(0, rank);
          { const Store connects_all(*child); }
          child->barrier();
          const std::set<int> before = connections();
          std::optional<Store> store(*child);
          child->barrier();
          if (rank == last()) {
            for (const int one : connections()) {
              if (!before.contains(one)) ::shutdown(one, SHUT_RDWR);
            }
          }
          try {
            take_part_in(*child, *store, finders);
            ADD_FAILURE() << "rank " << rank << " noticed nothing";
          } catch (const PeerLost& error) {
            EXPECT_STREQ(
                error.what(),
                ("lost rank " + std::to_string(last()) + ": its process has ended").c_str())
                << rank;
          }
          const auto turn = std::find(finders.begin(), finders.end(), rank);
          if (turn != finders.end() && std::next(turn) != finders.end()) {
            MPI_Send(nullptr, 0, MPI_BYTE, *std::next(turn), 0, MPI_COMM_WORLD);
          }
          MPI_Barrier(MPI_COMM_WORLD);  // until all have heard
          store.reset();
          child.reset();
          g_tells_nobody = false;
        },
        short_timeout(3s));
  }

 private:
  static void take_part_in(Communicator& child, Store& store, const std::vector<int>& finders) {
    const auto turn = std::find(finders.begin(), finders.end(), child.global_rank());
    if (turn == finders.end()) {
      child.barrier();
      return;
    }
    if (turn != finders.begin()) {
      MPI_Recv(nullptr, 0, MPI_BYTE, *std::prev(turn), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    g_tells_nobody = std::next(turn) != finders.end();
    store.get("never");
  }
};

TEST_F(StoreNews, WhatOneHearsByTheStoreAllHear) {
  if (world().one_host() || last_leader() == last()) GTEST_SKIP() << "needs two hosts of two";
  expect_all_hear({0});
}

TEST_F(StoreNews, WhatOneHearsOfTheStoreOfAnotherHostAllHear) {
  if (world().one_host() || last_leader() == last()) GTEST_SKIP() << "needs two hosts of two";
  expect_all_hear({last_leader()});
}

TEST_F(StoreNews, OfWhoTellsNobodyANeighbourTellsThatHearsByTheStoreAsWell) {
  const std::vector<int> host = first_host();
  if (world().one_host() || last_leader() == last() || host.size() < 2) {
    GTEST_SKIP() << "needs two hosts of two";
  }
  expect_all_hear({host[1], 0});
}

}  // namespace
}  // namespace tutti::test
