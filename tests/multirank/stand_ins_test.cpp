// A rank finds a mismatch, and is as if it had been stopped before it tells other hosts: who hears
// of it on its host stands in for it.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "multirank/news.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace {

/** How a rank tells others of a failure. */
enum class Tells {
  at_once,
  nobody,    ///< as if it were stopped, or had ended
  in_calls,  ///< of MPI after the one that sends it, as that may need them to reach a new peer
};
std::atomic<Tells> g_tells = Tells::at_once;  // this rank

/** What such calls send. */
struct Held {
  const void* data;
  int count;
  int destination;
  int tag;
  MPI_Comm comm;
};
std::map<MPI_Request, Held> g_held;  // by requests of receives from this rank itself
constexpr int kSent = 1;             // the tag of what these receive

}  // namespace

/** Stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  const bool is_news = tutti::test::is_news(data, count);
  if (is_news && g_tells == Tells::nobody) destination = MPI_PROC_NULL;
  if (is_news && g_tells == Tells::in_calls) {
    const int code = PMPI_Irecv(nullptr, 0, MPI_BYTE, 0, kSent, MPI_COMM_SELF, request);
    g_held[*request] = {data, count, destination, tag, comm};
    return code;
  }
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

/** Likewise. */
extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  if (const auto node = g_held.extract(*request)) {
    const Held& held = node.mapped();
    PMPI_Send(held.data, held.count, MPI_BYTE, held.destination, held.tag, held.comm);
    PMPI_Send(nullptr, 0, MPI_BYTE, 0, kSent, MPI_COMM_SELF);
  }
  return PMPI_Test(request, flag, status);
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/** Of the first host. */
struct Story {
  struct Turn {
    int rank;
    Tells tells;
  };
  int root;  ///< broadcasts
  /** Who finds that this is not its own call, and then who hears of that, one after the other. */
  std::vector<Turn> turns;
};

/** Ranks take turns by messages of MPI's alone. */
void call(int rank) { MPI_Send(nullptr, 0, MPI_BYTE, rank, 0, MPI_COMM_WORLD); }
void wait_for_call(int rank) {
  MPI_Recv(nullptr, 0, MPI_BYTE, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

class StandIns : public NewsTest {
 protected:
  /** The ranks of the first host; none if they are fewer than `fewest`, or the last rank leads its
   * own. */
  static std::vector<int> right_host(int fewest) {
    const std::vector<int> host = first_host();
    const bool is_right = !world().one_host() && last_leader() != last();
    return is_right && std::ssize(host) >= fewest ? host : std::vector<int>();
  }

  /** What the last rank hears, which waits for a message of the root's. The leader of its host has
   * left before, and passes nothing on that other leaders tell. */
  void expect_heard(const Story& story, const std::string& by_the_last,
                    std::chrono::milliseconds timeout = 20s) {
    const auto act = [&](Communicator& comm) {
      const int rank = comm.global_rank();
      const auto turn = std::find_if(story.turns.begin(), story.turns.end(),
                                     [rank](const Story::Turn& one) { return one.rank == rank; });
      const bool has_turn = turn != story.turns.end();
      std::optional<Communicator> child = comm.split(0, rank);
      child->barrier();
      comm.barrier();  // nobody is in that one any more
      if (has_turn) g_tells = turn->tells;
      const std::string heard = heard_in(*child, story);
      EXPECT_EQ(heard, has_turn ? "mismatch" : rank == last() ? by_the_last : "nothing") << rank;
      if (!has_turn || turn->tells == Tells::at_once) child.reset();
      if (rank == last_leader()) call(story.turns.front().rank);
      if (has_turn && std::next(turn) != story.turns.end()) call(std::next(turn)->rank);
      MPI_Barrier(MPI_COMM_WORLD);  // until the last has heard
      child.reset();
      g_tells = Tells::at_once;
    };
    on_ranks(act, short_timeout(timeout));
  }

 private:
  static std::string heard_in(Communicator& child, const Story& story) {
    try {
      take_part_in(child, story);
      return "nothing";
    } catch (const MismatchError&) {
      return "mismatch";
    } catch (const PeerLost& error) {
      return "lost rank " + std::to_string(error.ranks().front());
    }
  }
  static void take_part_in(Communicator& child, const Story& story) {
    const int rank = child.global_rank();
    std::vector<std::uint8_t> data(rank == story.turns.front().rank ? 9 : 8);
    const View bytes(data.data(), std::ssize(data), DType::u8);
    if (rank == story.root || host_of(rank) != host_of(0)) child.broadcast(bytes, story.root);
    if (rank == last()) child.recv(bytes, story.root);
    int before = last_leader();
    for (const auto& [one, tells] : story.turns) {
      if (one == rank) {
        wait_for_call(before);
        if (rank != story.root) child.broadcast(bytes, story.root);
        child.barrier();
      }
      before = one;
    }
  }
};

TEST_F(StandIns, OfWhoTellsNobodyANeighbourTells) {
  const auto host = right_host(2);
  if (host.empty()) GTEST_SKIP() << "needs two hosts of two";
  expect_heard({.root = 0, .turns = {{host[1], Tells::nobody}, {0, Tells::at_once}}}, "mismatch");
}

TEST_F(StandIns, OfALeaderThatTellsNobodyANeighbourTells) {
  const auto host = right_host(2);
  if (host.empty()) GTEST_SKIP() << "needs two hosts of two";
  ::setenv("TUTTI_BETWEEN_HOSTS", "mpi", 1);  // so the root needs no leader
  expect_heard({.root = host[1], .turns = {{0, Tells::nobody}, {host[1], Tells::at_once}}},
               "mismatch");
  ::unsetenv("TUTTI_BETWEEN_HOSTS");
}

TEST_F(StandIns, WhoStandsInHasMpiBringItsWordsOutBeforeTheProgramGoesOn) {
  const auto host = right_host(2);
  if (host.empty()) GTEST_SKIP() << "needs two hosts of two";
  expect_heard({.root = 0, .turns = {{host[1], Tells::nobody}, {0, Tells::in_calls}}}, "mismatch");
}

TEST_F(StandIns, OfTwoThatTellNobodyAThirdTells) {
  const auto host = right_host(3);
  if (host.empty()) GTEST_SKIP() << "needs two hosts, one of three";
  expect_heard({.root = 0,
                .turns = {{host[1], Tells::nobody}, {0, Tells::nobody}, {host[2], Tells::at_once}}},
               "mismatch");
}

/** Others stand in for nobody: each of them would have to tell all. */
TEST_F(StandIns, OfThreeThatTellNobodyTheDeadlineDoes) {
  const auto host = right_host(4);
  if (host.empty()) GTEST_SKIP() << "needs two hosts, one of four";
  expect_heard({.root = 0,
                .turns = {{host[1], Tells::nobody},
                          {0, Tells::nobody},
                          {host[2], Tells::nobody},
                          {host[3], Tells::at_once}}},
               "lost rank 0", 2s);
  // MPI can be finalised where all ranks know of a loss, or none does.
  on_ranks([](Communicator& comm) { comm.abort("it has heard of no loss"); });
}

}  // namespace
}  // namespace tutti::test
