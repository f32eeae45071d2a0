// Short broadcasts, one after the other, in which nobody waits for the others while there is room.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/roll_call.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class OneWay : public RankTest {
 protected:
  static void broadcast(Communicator& comm, std::vector<std::uint8_t>& data, int root) {
    comm.broadcast(View(data.data(), std::ssize(data), DType::u8), root);
  }
  /** A broadcast of `bytes` bytes that come from call `number`. */
  static void expect_data(Communicator& comm, std::size_t bytes, int root, int number) {
    const auto value = static_cast<std::uint8_t>(number % 251);
    std::vector<std::uint8_t> data(bytes, comm.global_rank() == root ? value : std::uint8_t{255});
    broadcast(comm, data, root);
    ASSERT_EQ(data, std::vector<std::uint8_t>(bytes, value)) << bytes << " bytes, call " << number;
  }
  /** The first rank of the host of the last one. */
  static int leader_of_the_last() {
    const std::vector<int>& hosts = world().hosts;
    const auto first = std::find(hosts.begin(), hosts.end(), hosts.back());
    return static_cast<int>(first - hosts.begin());
  }
};

TEST_F(OneWay, LoopsFromOneRootBringTheirData) {
  on_ranks([](Communicator& comm) {
    for (const int root : {0, ranks() - 1}) {
      for (const std::size_t bytes :
           {0U, 1U, 8U, 1024U, 3648U, 3649U, 4096U, 4097U, 16383U, 16384U, 16385U, 65536U}) {
        for (int call = 0; call < 60; ++call) expect_data(comm, bytes, root, call);
      }
    }
  });
}

TEST_F(OneWay, RootsMayChangeAndOtherCollectivesComeBetween) {
  on_ranks([](Communicator& comm) {
    constexpr std::array<std::size_t, 5> kSizes{8, 1024, 4096, 16384, 0};
    for (int call = 0; call < 400; ++call) {
      const auto number = static_cast<std::size_t>(call);
      expect_data(comm, kSizes[number / 3 % kSizes.size()], call / 7 % ranks(), call);
      if (call % 11 == 0) {
        std::vector<std::int64_t> sum(1, call);
        comm.all_reduce(View(std::span(sum)));
        ASSERT_EQ(sum.front(), std::int64_t{call} * ranks());
      }
      if (call % 37 == 0) comm.barrier();
    }
  });
}

/** Those of its own host come late, too: only a message that it sends then has them begin. */
TEST_F(OneWay, TheRootGoesOnBeforeAnybodyComes) {
  on_ranks([](Communicator& comm) {
    if (comm.local_size() == ranks()) GTEST_SKIP() << "ranks of one host meet";
    for (const int root : {0, ranks() - 1}) {
      for (const std::size_t bytes : {8U, 3648U, 3649U, 16384U}) {
        std::vector<std::int64_t> word(1);
        const bool is_root = comm.global_rank() == root;
        if (!is_root) comm.recv(View(std::span(word)), root, 1);
        for (int call = 0; call < 6; ++call) expect_data(comm, bytes, root, call);
        for (int peer = 0; is_root && peer < ranks(); ++peer) {
          if (peer != root) comm.send(View(std::span(word)), peer, 1);
        }
        comm.barrier();
      }
    }
  });
}

/** Data that follow a note may have to wait for who takes them, as those do that MPI carries: the
 * others come when a neighbour of the root tells them to. */
TEST_F(OneWay, TheRootsHostHasTheDataBeforeTheOthersTakeThem) {
  const std::vector<int>& hosts = world().hosts;
  const int root = ranks() - 1;
  const int leader = leader_of_the_last();
  if (world().one_host() || leader == root) GTEST_SKIP() << "needs a root that is led, and a host";
  on_ranks([&](Communicator& comm) {
    constexpr std::size_t kFollows = 16384;
    const auto is_far = [&](int rank) {
      return hosts[static_cast<std::size_t>(rank)] != hosts.back();
    };
    std::vector<std::int64_t> word(1);
    if (is_far(comm.global_rank())) comm.recv(View(std::span(word)), leader, 1);
    expect_data(comm, kFollows, root, 1);
    for (int peer = 0; comm.global_rank() == leader && peer < ranks(); ++peer) {
      if (is_far(peer)) comm.send(View(std::span(word)), peer, 1);
    }
    comm.barrier();
  });
}

/** Who has connections, whoever is the root. */
TEST_F(OneWay, TheLeaderOfTheRootsHostSendsToOtherHosts) {
  const int root = ranks() - 1;
  const int leader = leader_of_the_last();
  if (world().one_host() || leader == root) GTEST_SKIP() << "needs a root that is led, and a host";
  on_ranks([&](Communicator& comm) {
    for (const std::size_t bytes : {8U, 3648U, 3649U, 16384U}) {
      const std::int64_t before = comm.bytes_between();
      expect_data(comm, bytes, root, 1);
      const std::int64_t sent = comm.bytes_between() - before;
      if (comm.global_rank() == root) {
        EXPECT_EQ(sent, 0) << bytes;
      }
      if (comm.global_rank() == leader) {
        EXPECT_GE(sent, static_cast<std::int64_t>(bytes));
      }
    }
  });
}

/** Over a slow wire it takes as long as all that a host sends. On a fast one all leave the root. */
TEST_F(OneWay, DataBehindANoteLeaveEachHostOnce) {
  const std::vector<int>& hosts = world().hosts;
  const int last = *std::max_element(hosts.begin(), hosts.end());
  if (last < 2) GTEST_SKIP() << "needs three hosts";
  on_ranks([&](Communicator& comm) {
    const int own = hosts[static_cast<std::size_t>(comm.global_rank())];
    const bool is_fast = comm.describe().find("a fast wire") != std::string::npos;
    for (const std::int64_t bytes : {16384, 65536}) {
      const std::int64_t before = comm.bytes_between();
      expect_data(comm, static_cast<std::size_t>(bytes), 0, 1);
      const std::int64_t sent = comm.bytes_between() - before;
      const bool all_of_root = is_fast && bytes * last <= 131072;
      const std::int64_t passed_on = own != last ? bytes : 0;
      const std::int64_t of_leader = !all_of_root ? passed_on : own == 0 ? last * bytes : 0;
      const std::int64_t least = comm.local_rank() == 0 ? of_leader : 0;
      EXPECT_GE(sent, least);
      EXPECT_LT(sent, least + bytes);
    }
  });
}

TEST_F(OneWay, TwoRootsAreAMismatch) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int other : {1, ranks() - 1}) {
    for (const std::size_t bytes : {8U, 16384U, 65536U}) {
      // Between hosts who has gone on shows what it does now.
      const std::string count = "count " + std::to_string(bytes);
      expect_mismatch({"broadcast(u8, " + count + ", root", "; rank "}, [=](Communicator& comm) {
        const int root = comm.global_rank() == other ? other : 0;
        std::vector<std::uint8_t> data(bytes);
        for (int call = 0; call < 200; ++call) broadcast(comm, data, root);
      });
    }
  }
}

TEST_F(OneWay, AnotherCountInALoopIsAMismatch) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int odd : {0, 1, ranks() - 1}) {
    // The last two differ in who meets inside a host.
    for (const auto& [count, other] :
         {std::pair{8U, 9U}, {8U, 16384U}, {16384U, 16385U}, {65535U, 65536U}}) {
      const auto text = [](std::size_t bytes) { return "count " + std::to_string(bytes) + ", "; };
      expect_mismatch({text(count), text(other)},
                      [odd, count = count, other = other](Communicator& comm) {
                        std::vector<std::uint8_t> data(count);
                        for (int call = 0; call < 20; ++call) broadcast(comm, data, 0);
                        if (comm.global_rank() == odd) data.resize(other);
                        broadcast(comm, data, 0);
                      });
    }
  }
}

TEST_F(OneWay, ACollectiveInTheirPlaceIsAMismatch) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int odd : {0, 1, ranks() - 1}) {
    expect_mismatch({"broadcast(u8, count 8, root 0)", "barrier()"}, [odd](Communicator& comm) {
      std::vector<std::uint8_t> data(8);
      for (int call = 0; call < 20; ++call) broadcast(comm, data, 0);
      if (comm.global_rank() == odd) {
        comm.barrier();
      } else {
        broadcast(comm, data, 0);
      }
    });
  }
}

/** The last rank, which on most layouts is led by another one, asks for something else while that
 * one waits for the note, or has it. */
TEST_F(OneWay, WhoDoesNotGetTheDataKeepsItsOwn) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    constexpr std::uint8_t kOwn = 255;
    for (int time = 0; time < 40; ++time) {
      auto child = comm.split(0, comm.global_rank());
      const bool is_root = comm.global_rank() == 0;
      const bool is_odd = comm.global_rank() == ranks() - 1;
      std::vector<std::uint8_t> data(is_odd ? 9 : 8, is_root ? std::uint8_t{1} : kOwn);
      const std::vector<std::uint8_t> before = data;
      bool has_data = false;
      try {
        child->barrier();  // see expect_mismatch()
        // Others look at each other's calls after 0.05 to 0.3 ms.
        if (is_root) std::this_thread::sleep_for(time * 10us);
        broadcast(*child, data, 0);
        has_data = true;
        child->barrier();
        ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
      } catch (const MismatchError&) {
      }
      ASSERT_FALSE(has_data && is_odd);
      ASSERT_EQ(data, has_data ? std::vector<std::uint8_t>(8, 1) : before) << time;
    }
  });
}

TEST_F(OneWay, WhoDoesNotComeIsNamedByAll) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  struct Case {
    int root;
    int late;
    std::size_t bytes;
  };
  const int last = ranks() - 1;
  const int its_leader = leader_of_the_last();
  // Of three hosts the second passes notes in a row on to the third, and who leads the root's host
  // passes its on.
  for (const auto& [root, late, bytes] : {Case{0, 0, 8},
                                          {0, 1, 8},
                                          {0, last, 8},
                                          {0, last, 16384},
                                          {0, 0, 65536},
                                          {0, 1, 65536},
                                          {0, last, 65536},
                                          {last, last, 8},
                                          {last, its_leader, 8},
                                          {last, 0, 8}}) {
    if (late == 1 && ranks() == 2) continue;  // who is the last
    on_ranks(
        [root = root, late = late, bytes = bytes](Communicator& comm) {
          const RollCall given_up(comm);
          std::vector<std::uint8_t> data(bytes);
          try {
            for (int call = 0; call < 1'000'000; ++call) {
              if (call == 50 && comm.global_rank() == late) {
                EXPECT_TRUE(given_up.wait_for_others());
              }
              broadcast(comm, data, root);
            }
            ADD_FAILURE() << "rank " << late << " was waited for";
          } catch (const PeerLost& error) {
            EXPECT_EQ(error.ranks(), std::vector<int>{late}) << error.what();
          }
          given_up.come();
          EXPECT_TRUE(given_up.wait_for_others());  // they make the next one together
        },
        short_timeout(1s));
  }
}

}  // namespace
}  // namespace tutti::test
