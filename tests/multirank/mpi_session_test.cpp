// Sessions beside a user of MPI, who has initialised it and finalises it.
#include "comm/mpi/session.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/batch.hpp"
#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/host_lines.hpp"
#include "comm/mpi/lifecycle.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi.hpp"
#include "tutti/store.hpp"

namespace {

bool g_roll_fails = false;  // MPI refuses to send the messages of a roll call
int g_sends = 0;            // so many were asked of it
const std::thread::id kFirstThread = std::this_thread::get_id();
std::atomic<int> g_probes_of_others = 0;  // of other threads than the first

}  // namespace

/** These stand in front of MPI's. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (g_roll_fails && count == 0) return MPI_ERR_OTHER;
  ++g_sends;
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

extern "C" int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message,
                           MPI_Status* status) {
  if (std::this_thread::get_id() != kFirstThread) ++g_probes_of_others;
  return PMPI_Improbe(source, tag, comm, flag, message, status);
}

/** Open MPI sends a message from each rank to each other one. */
extern "C" int MPI_Iallgather(const void* in, int in_count, MPI_Datatype in_type, void* out,
                              int out_count, MPI_Datatype out_type, MPI_Comm comm,
                              MPI_Request* request) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  g_sends += size - 1;
  return PMPI_Iallgather(in, in_count, in_type, out, out_count, out_type, comm, request);
}

namespace tutti::test {
namespace {

using mpi::Channel;
using mpi::Session;
using namespace std::chrono_literals;

std::vector<int> ranks_of(const Session& session) {
  std::vector<int> ranks(static_cast<std::size_t>(session.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool works(const std::shared_ptr<Session>& session) {
  Channel channel(session, ranks_of(*session), 0, 20s);
  return GroupAgreement(HostGroup(channel, ranks_of(*session))).agree(1);
}

/** The user of MPI. One session and one channel are destroyed after its MPI_Finalize. */
class MpiUser : public ::testing::Environment {
 public:
  void SetUp() override {
    int provided = 0;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), MPI_SUCCESS);
    survivor_ = Session::world(20s);
    channel_ = std::make_unique<Channel>(survivor_, ranks_of(*survivor_), 7, 20s);
  }

  void TearDown() override {
    EXPECT_TRUE(works(survivor_));
    int finalised = 0;
    MPI_Finalized(&finalised);
    EXPECT_EQ(finalised, 0) << "somebody else finalised MPI";
    EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS);
    channel_.reset();
    survivor_.reset();
    EXPECT_THROW(Session::world(20s), InvalidArgument);
    EXPECT_THROW(Session::over(MPI_COMM_WORLD, 20s), InvalidArgument);
  }

 private:
  std::shared_ptr<Session> survivor_;
  std::unique_ptr<Channel> channel_;
};

[[maybe_unused]] const auto* const kUser =
    ::testing::AddGlobalTestEnvironment(new MpiUser);  // gtest owns it

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST(MpiSession, OutlivesTheCommunicatorItWasMadeFrom) {
  MPI_Comm halves = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, -world_rank(), &halves), MPI_SUCCESS);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(halves, &rank);
  MPI_Comm_size(halves, &size);
  const auto session = Session::over(halves, 20s);
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  ASSERT_EQ(MPI_Comm_get_errhandler(halves, &handler), MPI_SUCCESS);
  EXPECT_EQ(handler, MPI_ERRORS_ARE_FATAL) << "the user's error handler was changed";
  ASSERT_EQ(MPI_Comm_free(&halves), MPI_SUCCESS);
  EXPECT_EQ(session->rank(), rank);
  EXPECT_EQ(session->size(), size);
  EXPECT_TRUE(works(session));
}

TEST(MpiSession, KnowsTheThreadLevelThatTheUserAskedFor) {
  int level = 0;
  MPI_Query_thread(&level);
  EXPECT_EQ(Session::world(20s)->any_thread(), level == MPI_THREAD_MULTIPLE);
}

/** MPI may be called by one thread alone, which is then the caller's. */
TEST(MpiSession, WithoutThreadsAStreamWorksOnItsCallersThread) {
  if (Session::world(20s)->any_thread()) GTEST_SKIP() << "MPI has given more than it was asked for";
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  ::setenv("TUTTI_HOST_ID", std::to_string(world_rank()).c_str(), 1);
  {
    Communicator communicator = from_mpi(MPI_COMM_WORLD);
    float sum = 1;
    const Event event = communicator.all_reduce(std::span(&sum, 1), Reduce::sum, Stream::worker());
    EXPECT_EQ(sum, static_cast<float>(world_size()));  // without a wait
    event.wait();
  }
  ::unsetenv("TUTTI_HOST_ID");
}

/** Which may be used from all of them. */
TEST(MpiSession, WithoutThreadsAStoreCallsMpiOnTheFirstThreadAlone) {
  if (Session::world(20s)->any_thread()) GTEST_SKIP() << "MPI has given more than it was asked for";
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  ::setenv("TUTTI_HOST_ID", std::to_string(world_rank()).c_str(), 1);
  {
    Communicator communicator = from_mpi(MPI_COMM_WORLD);
    Store store(communicator);
    const auto wait = [&] { EXPECT_THROW(store.get("never", 150ms), DeadlineExceeded); };
    std::thread(wait).join();
    EXPECT_EQ(g_probes_of_others, 0);
    wait();
    communicator.barrier();
  }
  ::unsetenv("TUTTI_HOST_ID");
}

/** Whose error handler would end the process. */
TEST(MpiSession, ARollCallOverACommunicatorOfTheUserThrowsErrors) {
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const int no_tag = -5;
  EXPECT_THROW(mpi::call_roll(MPI_COMM_WORLD, no_tag, std::array{0, 1}, 1s), Error);
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  ASSERT_EQ(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler), MPI_SUCCESS);
  EXPECT_EQ(handler, MPI_ERRORS_ARE_FATAL);
}

TEST(MpiSession, RefusesWhatIsNoCommunicator) {
  EXPECT_THROW(Session::over(MPI_COMM_NULL, 20s), InvalidArgument);
}

TEST(MpiSession, RefusesACommunicatorOfTwoGroups) {
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm inter = MPI_COMM_NULL;
  const bool lowest = world_rank() == 0;
  MPI_Comm_split(MPI_COMM_WORLD, lowest ? 0 : 1, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, lowest ? 1 : 0, 0, &inter);
  EXPECT_THROW(Session::over(inter, 20s), InvalidArgument);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

TEST(MpiSession, FindsTheHostsAndThosePretended) {
  const auto session = Session::world(20s);
  ::unsetenv("TUTTI_HOST_ID");
  std::vector<int> hosts = session->hosts();  // the test runs on one machine
  EXPECT_EQ(std::count(hosts.begin(), hosts.end(), hosts[0]), session->size());

  const auto host_of = [](int rank) { return "host" + std::to_string(rank % 3 / 2); };
  ::setenv("TUTTI_HOST_ID", host_of(session->rank()).c_str(), 1);
  hosts = session->hosts();
  ::unsetenv("TUTTI_HOST_ID");
  ASSERT_EQ(hosts.size(), static_cast<std::size_t>(session->size()));
  for (int a = 0; a < session->size(); ++a) {
    for (int b = 0; b < session->size(); ++b) {
      EXPECT_EQ(hosts[static_cast<std::size_t>(a)] == hosts[static_cast<std::size_t>(b)],
                host_of(a) == host_of(b))
          << a << " and " << b;
    }
  }
}

TEST(MpiSession, FindsTheHostsByFewMessages) {
  const auto session = Session::world(20s);
  g_sends = 0;
  const std::vector<int> hosts = session->hosts();
  EXPECT_EQ(g_sends, std::bit_width(static_cast<unsigned>(session->size()) - 1));
  EXPECT_EQ(std::count(hosts.begin(), hosts.end(), 0), session->size());
}

TEST(MpiSession, AQuestionThatWasNotNeededFailsNothing) {
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const auto session = Session::world(20s);
  Channel channel(session, ranks_of(*session), 0, 20s);
  const auto text = std::make_shared<const int>(7);
  {
    Batch question(channel, Wire::Traffic::question);
    question.keep(text);
    question.send(text.get(), sizeof *text, (world_rank() + 1) % world_size());
  }
  EXPECT_FALSE(session->has_failed());
  int heard = 0;
  while (!channel.take(reinterpret_cast<std::byte*>(&heard), sizeof heard, Wire::Traffic::question,
                       Wire::kAnybody)) {
    channel.poll({});
  }
  EXPECT_EQ(heard, *text);
}

/** Of a new communicator: Open MPI gives it the lowest that is free. */
int next_number() {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const int number = MPI_Comm_c2f(comm);
  MPI_Comm_free(&comm);
  return number;
}

TEST(MpiSession, ComesAndGoesWithoutUsingUpCommunicators) {
  const int before = next_number();
  for (int i = 0; i < 20; ++i) {
    const auto session = Session::world(20s);
    if (i % 5 == 0) {
      EXPECT_TRUE(works(session));
    }
  }
  // MPI lets go of one that was freed when its last message is gone, be it of the test before or of
  // the last session.
  EXPECT_LE(next_number(), before + 1);
}

TEST(MpiSession, NamesItsLibraryOnOneLine) {
  EXPECT_FALSE(Session::library().empty());
  EXPECT_EQ(Session::library().find('\n'), std::string::npos);
}

/** Rank 0 leads the others' host, and has lines to two more, of which it gives up one once all have
 * it, as the other end has. */
TEST(HostLines, ThatAreNotKeptAreKeptByNobody) {
  const auto session = Session::over(MPI_COMM_WORLD, 20s);
  if (session->size() < 2) GTEST_SKIP() << "needs two ranks";
  Channel channel(session, ranks_of(*session), 0, 20s);
  const HostGroup group(channel, ranks_of(*session));
  GroupAgreement all(group);
  const Layout layout(std::vector<int>(static_cast<std::size_t>(session->size()), 0));
  if (channel.rank() != 0) {
    const mpi::HostConnections connections = mpi::borrow_lines(channel, layout);
    EXPECT_EQ(connections.reached, std::vector<int>{2});
    EXPECT_TRUE(connections.leaders.all_have_streams);
    EXPECT_TRUE(connections.leaders.are_fast);
    EXPECT_TRUE(all.agree(1));  // they hold them meanwhile
    EXPECT_TRUE(all.agree(2));
    return;
  }
  std::vector<mpi::Peer> peers;
  std::vector<mpi::Socket> others;
  for (const int host : {1, 2}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    peers.push_back({host, mpi::Line::hosts, host});
    peers.back().socket = mpi::Socket(ends[0]);
    others.emplace_back(ends[1]);
  }
  const std::span neighbours = layout.ranks_of(0).subspan(1);
  mpi::SocketLender lender(neighbours.size());
  mpi::offer_lines(channel, neighbours, lender);
  while (!lender.all_have_come()) lender.step();
  const std::vector<std::int32_t> lent = mpi::lend_lines(channel, peers, lender);
  EXPECT_EQ(lent, (std::vector<std::int32_t>{1, 2}));
  peers[0].socket = {};
  mpi::tell_kept(channel, neighbours, peers, lent, {true, true});
  EXPECT_TRUE(all.agree(1));
  std::byte byte{};
  EXPECT_EQ(mpi::receive_exactly(others[0], {&byte, 1}), mpi::Received::closed);
  EXPECT_NE(mpi::receive_exactly(others[1], {&byte, 1}), mpi::Received::closed);
  EXPECT_TRUE(all.agree(2));
}

TEST(MpiSessionAtLast, AnErrorInTheRollCallEndsItsQuestions) {
  if (world_size() != 2) GTEST_SKIP() << "two ranks are enough";
  const auto session = Session::world(1s);
  Channel channel(session, ranks_of(*session), 0, 20s);
  if (world_rank() == 0) {
    g_roll_fails = true;
    EXPECT_THROW(session->hosts(), Error);
    g_roll_fails = false;
  } else {
    std::this_thread::sleep_for(1500ms);
  }
  // The other one answers now what nobody asks any more.
  for (const auto end = std::chrono::steady_clock::now() + 1s;
       std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
    channel.poll({});
  }
  if (world_rank() != 0) session->hosts();  // MPI_Finalize wants it
}

TEST(MpiSessionAtLast, WhoIsAStepAheadHasCome) {
  if (world_size() < 3) GTEST_SKIP() << "needs three ranks";
  MPI_Comm comm = MPI_COMM_NULL;  // on which the roll is called
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const int silent = world_size() - 1;
  const auto session = Session::over(comm, 1s);
  if (world_rank() == silent) {
    std::this_thread::sleep_for(3s);
  } else {
    try {
      if (world_rank() == 0) session->hosts();
      Channel channel(session, ranks_of(*session), 0, 1s);
      std::byte byte{};
      Batch batch(channel, Wire::Traffic::point_to_point);
      batch.recv(&byte, 1, silent);
      batch.wait();
      ADD_FAILURE() << "there is nothing to receive";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{silent}) << error.what();
    }
  }
  std::this_thread::sleep_for(1s);  // rank 0 has given up: what comes now is not for it
  if (world_rank() == 0) return;
  try {  // MPI_Finalize cannot stand a collective that only some have begun
    session->hosts();
  } catch (const PeerLost& error) {
    EXPECT_FALSE(error.ranks().empty());
  }
}

TEST(MpiSessionAtLast, NamesTheRankThatDoesNotCome) {
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const int late = world_size() - 1;
  const auto start = std::chrono::steady_clock::now();
  const bool is_late = world_rank() == late;
  if (is_late) std::this_thread::sleep_for(3s);
  try {
    const auto session = Session::over(MPI_COMM_WORLD, 1s);
    FAIL() << "all have come";
  } catch (const PeerLost& error) {
    EXPECT_EQ(std::count(error.ranks().begin(), error.ranks().end(), world_rank()), 0);
    if (!is_late) {
      EXPECT_EQ(error.ranks(), std::vector<int>{late}) << error.what();
    }
  }
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, is_late ? 8s : 3s);
  // MPI_Finalize cannot stand a duplicate that is half made: let MPI make it.
  int found = 0;
  for (const auto end = std::chrono::steady_clock::now() + 4s;
       std::chrono::steady_clock::now() < end;) {
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace
}  // namespace tutti::test
