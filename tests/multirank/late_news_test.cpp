// A rank finds a mismatch, and the news reach the other hosts late: who has heard of it on its host
// leaves before, and nobody takes that for a loss.
#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace {

std::atomic<bool> g_news_are_late = false;  // the next that this rank sends

}  // namespace

/** Stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (g_news_are_late && count == static_cast<int>(sizeof(tutti::ControlMessage)) &&
      std::holds_alternative<tutti::FailureReport>(
          *static_cast<const tutti::ControlMessage*>(data)) &&
      g_news_are_late.exchange(false)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  }
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class LateNews : public RankTest {
 protected:
  /** A rank of rank 0's host, which is led by that one; nobody if it is alone. */
  static std::optional<int> neighbour() {
    for (int rank = 1; rank < ranks(); ++rank) {
      if (world().hosts[static_cast<std::size_t>(rank)] == world().hosts.front()) return rank;
    }
    return std::nullopt;
  }
};

TEST_F(LateNews, AMismatchIsWhatAllHear) {
  if (world().one_host()) GTEST_SKIP() << "needs two hosts";
  const auto finder = neighbour();
  if (!finder) GTEST_SKIP() << "needs two ranks on a host";
  on_ranks([&](Communicator& comm) {
    const bool is_finder = comm.global_rank() == *finder;
    for (int time = 0; time < 3; ++time) {
      std::optional<Communicator> child = comm.split(0, comm.global_rank());
      child->barrier();
      std::vector<std::uint8_t> data(is_finder ? 9 : 8);
      g_news_are_late = is_finder;
      try {
        child->broadcast(View(data.data(), std::ssize(data), DType::u8), 0);
        if (comm.global_rank() == 0) std::this_thread::sleep_for(50ms);  // the finder has shown it
        child->barrier();
        ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
      } catch (const MismatchError&) {
      }
      child.reset();
      g_news_are_late = false;  // it still is where another rank has found it
    }
  });
}

}  // namespace
}  // namespace tutti::test
