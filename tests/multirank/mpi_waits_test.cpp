// Who is blamed where the ranks of several hosts wait in communicators that know nothing of each
// other.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Ranks = std::vector<int>;

constexpr std::chrono::milliseconds kTimeout = 1500ms;
constexpr auto kVerdict = 2500ms;  // after the deadline: a second, and some more if busy

/** The tests initialise MPI: they finalise it although sessions have failed, for in the end all
 * ranks are well. */
class MpiUser : public ::testing::Environment {
 public:
  void SetUp() override {
    int provided = 0;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  }
};

[[maybe_unused]] const auto* const kUser =
    ::testing::AddGlobalTestEnvironment(new MpiUser);  // gtest owns it

/** Three ranks. Who only meets the others answers nobody: it is as good as stopped. */
class MpiWaits : public ::testing::Test {
 protected:
  static int rank() { return world().rank; }

  static void pretend_hosts(const Ranks& hosts) {
    const std::string host = std::to_string(hosts[static_cast<std::size_t>(rank())]);
    ::setenv("TUTTI_HOST_ID", host.c_str(), 1);
  }

  /** A communicator, and an MPI session, of its own; for those of `ranks`. */
  static Communicator over(const Ranks& ranks, std::chrono::milliseconds timeout = kTimeout) {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
    MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &comm);
    Communicator communicator = from_mpi(comm, short_timeout(timeout));
    MPI_Comm_free(&comm);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    return communicator;
  }

  static void meet() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; done == 0; std::this_thread::sleep_for(1ms)) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
  }

  static void recv(Communicator& communicator, int source) {
    float value = 0;
    communicator.recv(View(&value, 1, DType::f32), source);
  }

  /** A wait that must end in PeerLost soon after its deadline; why. */
  static std::string expect_lost(const Ranks& culprits, const std::function<void()>& action) {
    const auto start = Clock::now();
    try {
      action();
      ADD_FAILURE() << "rank " << rank() << " noticed nothing";
    } catch (const PeerLost& error) {
      if (!culprits.empty()) {
        EXPECT_EQ(error.ranks(), culprits) << error.what();
      }
      EXPECT_LE(Clock::now() - start, kTimeout + kVerdict) << error.what();
      return error.reason();
    }
    return "";
  }

  static bool tells_of_circle(const std::string& reason) {
    return reason.find("wait for each other") != std::string::npos;
  }
  /** Whether it does on one rank at least: who learns it first ends its wait. */
  static bool some_tell_of_circle(const std::string& reason) {
    int tells = tells_of_circle(reason) ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &tells, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return tells != 0;
  }
};

TEST_F(MpiWaits, LeadThroughAnotherSession) {
  // Rank 0 waits for rank 1, which waits in a session of its own for rank 2, which has stopped.
  pretend_hosts({0, 1, 2});
  Communicator whole = over({0, 1, 2});
  if (rank() == 0) {
    meet();
    expect_lost({2}, [&] { recv(whole, 1); });
    meet();
  } else {
    Communicator other = over({1, 2});
    meet();
    if (rank() == 1) expect_lost({1}, [&] { recv(other, 1); });
    meet();
  }
}

TEST_F(MpiWaits, LeadThroughSharedMemoryAlone) {
  // Rank 2 waits for rank 1, which waits for rank 0 of its host where MPI knows nothing of.
  pretend_hosts({0, 0, 1});
  Communicator whole = over({0, 1, 2});
  const UniqueId id = agree_on_ticket(whole);
  if (rank() == 2) {
    meet();
    expect_lost({0}, [&] { recv(whole, 1); });
    meet();
  } else {
    Communicator host(rank(), 2, id, short_timeout(kTimeout));
    meet();
    if (rank() == 1) expect_lost({0}, [&] { recv(host, 0); });
    meet();
  }
}

TEST_F(MpiWaits, CloseACircleOfSessions) {
  // Each waits for the next one in a session of the two.
  pretend_hosts({0, 1, 2});
  Communicator first = rank() == 2 ? over({1, 2}) : over({0, 1});
  Communicator second = rank() == 1 ? over({1, 2}) : over({0, 2});
  Communicator& with_next = rank() == 0 ? first : second;
  const int next = rank() == 2 ? 0 : 1;
  meet();
  const std::string reason = expect_lost({next}, [&] { recv(with_next, next); });
  meet();
  EXPECT_TRUE(some_tell_of_circle(reason)) << reason;
}

TEST_F(MpiWaits, CloseACircleThroughSharedMemory) {
  // Rank 0 waits for rank 1 of its host where MPI knows nothing of, 1 for 2 and 2 for 0 in the
  // whole.
  pretend_hosts({0, 0, 1});
  Communicator whole = over({0, 1, 2});
  const UniqueId id = agree_on_ticket(whole);
  std::string reason;
  if (rank() == 2) {
    meet();
    reason = expect_lost({}, [&] { recv(whole, 0); });
    meet();
  } else {
    Communicator host(rank(), 2, id, short_timeout(kTimeout));
    meet();
    if (rank() == 0) expect_lost({1}, [&] { recv(host, 1); });
    if (rank() == 1) reason = expect_lost({}, [&] { recv(whole, 2); });
    meet();
  }
  if (rank() != 0) {
    EXPECT_TRUE(tells_of_circle(reason)) << reason;
  }
}

TEST_F(MpiWaits, HaveADeadlineOfTheirOwnInAPartOfOneHost) {
  // As before, in a part of the whole; rank 0 waits for some time before the others do.
  pretend_hosts({0, 0, 1});
  Communicator whole = over({0, 1, 2});
  std::optional<Communicator> part = whole.split(rank() == 2 ? 1 : 0, 0);
  meet();
  if (rank() == 0) {
    const std::string reason = expect_lost({1}, [&] { recv(*part, 1); });
    EXPECT_TRUE(tells_of_circle(reason)) << reason;
  } else {
    std::this_thread::sleep_for(kTimeout * 3 / 5);
    expect_lost({}, [&] { recv(whole, rank() == 1 ? 2 : 0); });
  }
  meet();
}

}  // namespace
}  // namespace tutti::test
