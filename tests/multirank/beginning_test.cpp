// The beginning of a communicator: what is said of it, and what it says where there is no room.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/layout.hpp"
#include "support/world.hpp"

namespace {

/** Once this is set, this process does nothing for so long where hosts begin to connect, as if it
 * were stopped. */
std::chrono::milliseconds& delay() {
  static std::chrono::milliseconds delay{0};
  return delay;
}

}  // namespace

/** Stands before the C library's own, which is nothing but this call: a leader listens for those of
 * other hosts first. */
extern "C" int listen(int fd, int n) noexcept {
  int domain = 0;
  socklen_t length = sizeof domain;
  const bool is_known = ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0;
  if (is_known && domain == AF_INET) std::this_thread::sleep_for(std::exchange(delay(), {}));
  return static_cast<int>(::syscall(SYS_listen, fd, n));
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class Beginning : public RankTest {};

/** While it lives this process can make no file longer than a kilobyte: as if memory were full. */
class NoRoom {
 public:
  NoRoom() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit small = before_;
    small.rlim_cur = 1024;
    setrlimit(RLIMIT_FSIZE, &small);
  }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;
  ~NoRoom() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(Beginning, AFullMachineIsToldToAllRanksAtOnce) {
  if (world().launch == Launch::threads) GTEST_SKIP() << "needs a process a rank";
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  on_ranks([](Communicator& comm) {
    const UniqueId id = agree_on_ticket(comm);
    const auto begin = std::chrono::steady_clock::now();
    try {
      std::optional<NoRoom> no_room;
      if (comm.global_rank() == 0) no_room.emplace();
      const Communicator joined(comm.global_rank(), ranks(), id, short_timeout());
      ADD_FAILURE() << "did not throw";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.error_number(), EFBIG) << error.what();
      EXPECT_NE(std::string(error.what()).find("bytes of shared memory"), std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);  // not the deadline
    comm.barrier();
  });
}

TEST_F(Beginning, APartThatCannotBeMadeEndsTheSplitForAll) {
  if (world().one_host()) GTEST_SKIP() << "is about parts on several hosts";
  on_ranks([](Communicator& comm) {
    const bool elsewhere = world().hosts[static_cast<std::size_t>(comm.global_rank())] != 0;
    const auto begin = std::chrono::steady_clock::now();
    {
      std::optional<NoRoom> no_room;
      if (elsewhere) no_room.emplace();
      EXPECT_THROW(comm.split(0, 0), Error);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    EXPECT_THROW(comm.barrier(), PeerLost);
  });
}

TEST_F(Beginning, ALeaderThatWaitsForAnotherHostIsNotBlamed) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  on_ranks([](Communicator& comm) {
    constexpr auto kTimeout = 1500ms;
    const auto& hosts = world().hosts;
    const auto other =
        std::find_if(hosts.begin(), hosts.end(), [&](int host) { return host != hosts[0]; });
    const auto late = static_cast<int>(other - hosts.begin());  // the leader of the second host
    comm.barrier();
    if (comm.global_rank() == late) delay() = 3 * kTimeout;
    try {
      const Communicator joined(short_timeout(kTimeout));
      ADD_FAILURE() << "did not throw";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{late}) << error.what();
    }
    EXPECT_EQ(delay(), 0ms) << "it has not listened";
  });
}

TEST_F(Beginning, WhomAPartLosesIsNamedAsARankOfTheWhole) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  on_ranks([](Communicator& comm) {
    constexpr auto kTimeout = 1500ms;
    const int late = ranks() - 1;  // in the reversed order the leader of its host, and rank 0
    Communicator whole(short_timeout(kTimeout));
    whole.barrier();
    if (comm.global_rank() == late) delay() = 3 * kTimeout;
    try {
      whole.split(0, -comm.global_rank());
      ADD_FAILURE() << "did not throw";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{late}) << error.what();
    }
    EXPECT_EQ(delay(), 0ms) << "it has not listened";
  });
}

TEST_F(Beginning, AForkedChildHasNoShareInItsParentsMpi) {
  if (world().launch != Launch::mpi) GTEST_SKIP() << "needs MPI";
  on_ranks([](Communicator& comm) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        const Communicator spoken(short_timeout());
      } catch (const InvalidArgument& error) {
        std::_Exit(std::string(error.what()).find("ticket") == std::string::npos ? 2 : 0);
      } catch (const Error&) {
        std::_Exit(1);
      }
      std::_Exit(3);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    comm.barrier();
  });
}

TEST_F(Beginning, AVariableThatMustAgreeIsRefusedWhereItDiffers) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  if (world().launch == Launch::threads) GTEST_SKIP() << "threads share their environment";
  on_ranks([](Communicator& comm) {
    const UniqueId id = agree_on_ticket(comm);
    const bool differs = comm.global_rank() == ranks() - 1;
    if (differs) ::setenv("TUTTI_GPU_CHECK", "7", 1);
    try {
      const Communicator joined =
          world().launch == Launch::mpi
              ? Communicator(short_timeout())
              : Communicator(comm.global_rank(), ranks(), id, short_timeout());
      ADD_FAILURE() << "was not refused";
    } catch (const InvalidArgument& error) {
      const std::string last = "7 on rank " + std::to_string(ranks() - 1) + ", 100 on rank";
      EXPECT_NE(std::string(error.what()).find("TUTTI_GPU_CHECK"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(last), std::string::npos) << error.what();
    }
    if (differs) ::unsetenv("TUTTI_GPU_CHECK");
    comm.barrier();
  });
}

TEST_F(Beginning, RankZeroLogsWhatItTalksOverAndEachHostByWhich) {
  on_ranks([](Communicator&) {});  // Open MPI may have something to say at its start
  ::setenv("TUTTI_LOG", "info", 1);
  ::testing::internal::CaptureStderr();
  on_ranks([](Communicator&) {});
  std::string log = ::testing::internal::GetCapturedStderr();
  ::unsetenv("TUTTI_LOG");

  const Layout layout(world().hosts);
  if (!world().one_host() && layout.local_rank_of(world().rank) == 0) {
    EXPECT_TRUE(log.starts_with("tutti info: to other hosts by ")) << log;
    log.erase(0, log.find('\n') + 1);
  }
  const bool has_rank_zero = world().launch == Launch::threads || world().rank == 0;
  if (!has_rank_zero) {
    EXPECT_EQ(log, "");
    return;
  }
  std::string ranks_by_host;
  for (int host = 0; host < layout.host_count(); ++host) {
    ranks_by_host += (host == 0 ? "" : "+") + std::to_string(layout.ranks_of(host).size());
  }
  const std::string one_host =
      "shared memory among " + std::to_string(ranks()) + " ranks of one host";
  const std::string several =
      " between " + std::to_string(layout.host_count()) + " hosts (" + ranks_by_host + " ranks), ";
  EXPECT_TRUE(log.starts_with("tutti info: " + (world().one_host() ? one_host : "Open MPI")))
      << log;
  EXPECT_NE(log.find(world().one_host() ? one_host : several), std::string::npos) << log;
  EXPECT_NE(log.find("shared memory "), std::string::npos) << log;
  EXPECT_NE(log.find(" kernels\n"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

}  // namespace
}  // namespace tutti::test
