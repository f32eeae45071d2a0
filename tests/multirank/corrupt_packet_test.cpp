// sparse_all_reduce when a packet is damaged on its way between two hosts.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/sparse.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace {

/** Messages of more bytes than that to rank `to` arrive with other bytes; 0: none do. */
struct Damage {
  std::size_t longer_than = 0;
  int to = 0;
  int socket = -1;  ///< to that rank: the first to which such a message is sent, as it comes first
};

Damage& damage() {
  static Damage damage;
  return damage;
}

/** Alive as long as MPI may read it. */
std::vector<std::byte>& damaged() {
  static std::vector<std::byte> bytes;
  return bytes;
}

}  // namespace

/** Stands before MPI's own, as the profiling interface of the standard provides. */
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  const auto length = static_cast<std::size_t>(count);
  if (damage().longer_than == 0 || length <= damage().longer_than || to != damage().to) {
    return PMPI_Isend(data, count, type, to, tag, comm, request);
  }
  damaged().assign(length, std::byte{0xEE});
  return PMPI_Isend(damaged().data(), count, type, to, tag, comm, request);
}

/** Stands before the C library's, for messages that do not go through MPI. */
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): those are reserved names
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  std::vector<iovec> parts(message->msg_iov, message->msg_iov + message->msg_iovlen);
  for (iovec& part : parts) {
    if (damage().longer_than == 0 || part.iov_len <= damage().longer_than) continue;
    if (damage().socket < 0) damage().socket = fd;
    if (damage().socket != fd) continue;
    damaged().assign(std::max(damaged().size(), part.iov_len), std::byte{0xEE});
    part.iov_base = damaged().data();
  }
  msghdr sent = *message;
  sent.msg_iov = parts.data();
  return ::syscall(SYS_sendmsg, fd, &sent, flags);
}

namespace tutti::test {
namespace {

/** What is damaged: messages of more bytes than that, while TUTTI_SPARSE is this. */
struct Case {
  const char* name;
  const char* algorithm;
  std::size_t longer_than;
};

class CorruptPacket : public RankTest, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override { ::setenv("TUTTI_SPARSE", GetParam().algorithm, 1); }
  void TearDown() override { ::unsetenv("TUTTI_SPARSE"); }
};

// The reports that come before the packets have some hundred bytes.
INSTANTIATE_TEST_SUITE_P(Messages, CorruptPacket,
                         ::testing::Values(Case{"gather", "gather", 10'000},
                                           Case{"split", "split", 10'000},
                                           Case{"report", "auto", 500}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CorruptPacket, IsRefusedAndAllRanksHearOfIt) {
  if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  on_ranks([](Communicator& comm) {
    // The leader of the second host gets a corrupt packet from that of the first.
    const auto& hosts = world().hosts;
    int victim = 0;
    while (hosts[static_cast<std::size_t>(victim)] == hosts[0]) ++victim;
    const auto is_victims = [&](int rank) {
      return hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(victim)];
    };
    comm.barrier();
    constexpr std::int64_t kCount = 1'000'000;
    const Sparse mine = sparse_data(SparsePattern::scattered, comm.global_rank(), kCount);
    if (comm.global_rank() == 0) damage() = {GetParam().longer_than, victim};
    std::string text;
    try {
      std::vector<float> out(kCount);
      comm.sparse_all_reduce(mine.view(), View(std::span(out)));
      comm.barrier();
    } catch (const CommunicationError& error) {
      text = error.what();
      const auto* lost = dynamic_cast<const PeerLost*>(&error);
      // The victim passes it on inside its host, where all may see for themselves.
      EXPECT_FALSE(comm.global_rank() == victim && lost != nullptr) << text;
      EXPECT_TRUE(is_victims(comm.global_rank()) || lost != nullptr) << text;
      if (lost != nullptr) {
        EXPECT_EQ(lost->ranks(), std::vector<int>{0}) << text;
      }
    }
    damage() = {};
    EXPECT_NE(text.find("rank 0 "), std::string::npos) << text;
    EXPECT_NE(text.find("is corrupt"), std::string::npos) << text;
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

}  // namespace
}  // namespace tutti::test
