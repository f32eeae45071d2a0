// A rank finds a mismatch, and tells the other hosts late: who has heard of it on its host leaves
// meanwhile, and nobody takes that for a loss.
#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "multirank/news.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/log.hpp"

namespace {

std::atomic<int> g_late_by = 0;  // the next news that this rank sends, in milliseconds
constexpr int kDropped = 16384;
std::atomic<int> g_drops_for = -1;  // the next message of so many bytes to this rank

}  // namespace

/** Stands in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (g_late_by != 0 && tutti::test::is_news(data, count)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(g_late_by.exchange(0)));
  }
  if (count == kDropped && destination == g_drops_for) {
    g_drops_for = -1;
    destination = MPI_PROC_NULL;
  }
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/** The warnings in this process's log while it exists. */
class Log {
 public:
  Log() {
    set_log_sink({[](LogLevel level) { return level == LogLevel::warn; },
                  [this](LogLevel, std::string_view line) {
                    const std::lock_guard lock(mutex_);
                    text_ += std::string(line) + "\n";
                  }});
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log() { set_log_sink({}); }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

class LateNews : public NewsTest {
 protected:
  /** Another rank of rank 0's host; nobody if it is alone. */
  static std::optional<int> neighbour() {
    const std::vector<int> host = first_host();
    return host.size() > 1 ? std::optional(host[1]) : std::nullopt;
  }
};

TEST_F(LateNews, AMismatchIsWhatAllHear) {
  if (world().one_host()) GTEST_SKIP() << "needs two hosts";
  const auto finder = neighbour();
  if (!finder) GTEST_SKIP() << "needs two ranks on a host";
  on_ranks([&](Communicator& comm) {
    const bool is_finder = comm.global_rank() == *finder;
    // Of who is as late as that, others would say that its leader's connection has ended.
    for (const int late_by : {400, 3000}) {
      std::optional<Communicator> child = comm.split(0, comm.global_rank());
      std::vector<std::uint8_t> data(is_finder ? 9 : 8);
      g_late_by = is_finder ? late_by : 0;
      try {
        child->barrier();  // who comes late to the end of it may hear of the mismatch there
        child->broadcast(View(data.data(), std::ssize(data), DType::u8), 0);
        if (comm.global_rank() == 0) std::this_thread::sleep_for(50ms);  // the finder has shown it
        child->barrier();
        ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
      } catch (const MismatchError&) {
      }
      child.reset();
      g_late_by = 0;  // not used where another rank has found it
    }
  });
}

/** The last rank and rank 0 do not agree on a message, while the leader of the last host waits for
 * data of rank 0's neighbour. It hears of that on its host. */
TEST_F(LateNews, WhoIsInTheMiddleOfACallHasLostNobody) {
  const auto root = neighbour();
  const int sender = ranks() - 1;
  const int leader = last_leader();
  if (world().one_host() || !root || leader == sender) GTEST_SKIP() << "needs two hosts of two";
  const Log log;
  ::setenv("TUTTI_BETWEEN_HOSTS", "mpi", 1);  // whose messages can be dropped here
  on_ranks([&](Communicator& comm) {
    std::vector<std::uint8_t> data(kDropped);
    const View bytes(data.data(), kDropped, DType::u8);
    g_drops_for = comm.global_rank() == *root ? leader : -1;
    g_late_by = comm.global_rank() == 0 || comm.global_rank() == sender ? 400 : 0;
    try {
      comm.barrier();
      if (comm.global_rank() == sender) comm.send(bytes, 0);
      comm.broadcast(bytes, *root);
      if (comm.global_rank() == 0) {
        std::this_thread::sleep_for(100ms);  // the leader has got the note
        comm.recv(View(data.data(), kDropped / 8, DType::f64), sender);
      }
      comm.barrier();
      ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
    } catch (const MismatchError&) {
    }
    g_late_by = 0;
    EXPECT_EQ(g_drops_for, -1) << "nothing was dropped";
  });
  ::unsetenv("TUTTI_BETWEEN_HOSTS");
  EXPECT_EQ(log.text(), "");  // such as that a rank was lost
}

}  // namespace
}  // namespace tutti::test
