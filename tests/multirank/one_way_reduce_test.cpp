// Short reductions to one rank, whose others wait for nobody while there is room.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/roll_call.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

using Numbers = std::vector<std::int64_t>;

class OneWayReduce : public RankTest {
 protected:
  void SetUp() override {
    if (world().one_host()) GTEST_SKIP() << "needs several hosts";
  }

  /** On the root `out` becomes the sum, and stays as it is elsewhere. */
  static void reduce(Communicator& comm, const Numbers& in, Numbers& out, int root) {
    comm.reduce(ConstView(in.data(), std::ssize(in), DType::i64), View(std::span(out)), root);
  }
  static std::int64_t number_of(int rank, int call, std::size_t i) {
    return static_cast<std::int64_t>(i) * (rank + 1) + call;
  }
  static void expect_sums(Communicator& comm, std::size_t count, int root, int call) {
    Numbers in(count);
    Numbers expected(count, -1);
    for (std::size_t i = 0; i < count; ++i) {
      in[i] = number_of(comm.global_rank(), call, i);
      if (comm.global_rank() != root) continue;
      expected[i] = 0;
      for (int rank = 0; rank < ranks(); ++rank) expected[i] += number_of(rank, call, i);
    }
    Numbers out(count, -1);
    reduce(comm, in, out, root);
    ASSERT_EQ(out, expected) << count << " numbers, call " << call;
  }
  /** Whether the rank waits for others though it only gives: it leads the host of a root that is
   * led. */
  static bool waits_for(int root, int rank) {
    const std::vector<int>& hosts = world().hosts;
    const int host = hosts[static_cast<std::size_t>(root)];
    return std::find(hosts.begin(), hosts.end(), host) - hosts.begin() == rank;
  }
};

TEST_F(OneWayReduce, LoopsToOneRootBringTheirSums) {
  on_ranks([](Communicator& comm) {
    for (const int root : {0, ranks() - 1}) {
      for (const std::size_t count : {0U, 1U, 128U, 464U, 465U, 2048U, 2049U, 8192U, 16384U}) {
        for (int call = 0; call < 40; ++call) expect_sums(comm, count, root, call);
      }
    }
  });
}

TEST_F(OneWayReduce, RootsMayChangeAndOtherCollectivesComeBetween) {
  on_ranks([](Communicator& comm) {
    constexpr std::array<std::size_t, 5> kCounts{1, 128, 1024, 2048, 0};
    for (int call = 0; call < 400; ++call) {
      const auto number = static_cast<std::size_t>(call);
      expect_sums(comm, kCounts[number / 3 % kCounts.size()], call / 7 % ranks(), call);
      if (call % 5 == 0) {
        const int root = call / 5 % ranks();
        std::int64_t word = comm.global_rank() == root ? call : -1;
        comm.broadcast(View(std::span(&word, 1)), root);
        ASSERT_EQ(word, call);
      }
      if (call % 37 == 0) comm.barrier();
    }
  });
}

/** Also those of the root's own host: only a message that all have sent has it begin. */
TEST_F(OneWayReduce, TheOthersGoOnBeforeTheRootComes) {
  on_ranks([](Communicator& comm) {
    for (const int root : {0, ranks() - 1}) {
      for (const std::size_t count : {1U, 464U, 465U, 1024U}) {
        std::int64_t word = 0;
        const bool is_root = comm.global_rank() == root;
        for (int peer = 0; is_root && peer < ranks(); ++peer) {
          if (peer != root && !waits_for(root, peer)) comm.recv(View(std::span(&word, 1)), peer, 1);
        }
        for (int call = 0; call < 6; ++call) expect_sums(comm, count, root, call);
        if (!is_root && !waits_for(root, comm.global_rank())) {
          comm.send(View(std::span(&word, 1)), root, 1);
        }
        comm.barrier();
      }
    }
  });
}

TEST_F(OneWayReduce, TwoRootsAreAMismatch) {
  for (const int other : {1, ranks() - 1}) {
    for (const int odd : {0, ranks() - 1}) {
      for (const std::size_t count : {1U, 2048U, 4096U}) {
        expect_mismatch({"reduce(i64, count " + std::to_string(count), "; rank "},
                        [=](Communicator& comm) {
                          const int root = comm.global_rank() == odd ? other : 0;
                          const Numbers in(count, 1);
                          Numbers out(count);
                          for (int call = 0; call < 200; ++call) reduce(comm, in, out, root);
                        });
      }
    }
  }
}

TEST_F(OneWayReduce, AnotherCallInTheirPlaceIsAMismatch) {
  const auto in_place_of_the_last = [&](const std::string& shown,
                                        const std::function<void(Communicator&)>& call) {
    for (const int odd : {0, 1, ranks() - 1}) {
      expect_mismatch({"reduce(i64, count 2, sum, root 0)", shown}, [&](Communicator& comm) {
        const Numbers in(2, 1);
        Numbers out(2);
        for (int time = 0; time < 20; ++time) reduce(comm, in, out, 0);
        comm.global_rank() == odd ? call(comm) : reduce(comm, in, out, 0);
      });
    }
  };
  in_place_of_the_last("count 3", [](Communicator& comm) {
    const Numbers in(3, 1);
    Numbers out(3);
    reduce(comm, in, out, 0);
  });
  in_place_of_the_last("count 4000", [](Communicator& comm) {
    const Numbers in(4000, 1);
    Numbers out(4000);
    reduce(comm, in, out, 0);
  });
  in_place_of_the_last("barrier()", [](Communicator& comm) { comm.barrier(); });
  in_place_of_the_last("broadcast(i64, count 2, root 0)", [](Communicator& comm) {
    Numbers data(2);
    comm.broadcast(View(std::span(data)), 0);
  });
}

/** Who has given something shows nothing of it: its memory is its own. */
TEST_F(OneWayReduce, TheRootWritesNothingInAMismatch) {
  for (const std::size_t count : {2U, 1024U, 4096U}) {
    for (const int root : {0, ranks() - 1}) {
      const int odd = root == 0 ? ranks() - 1 : 0;
      on_ranks([&](Communicator& comm) {
        const Numbers in(comm.global_rank() == odd ? count + 1 : count, 1);
        const Numbers before(in.size(), -1);
        Numbers out = before;
        try {
          comm.barrier();  // see expect_mismatch()
          reduce(comm, in, out, root);
          comm.barrier();
          ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
        } catch (const MismatchError&) {
        }
        ASSERT_EQ(out, before);
      });
    }
  }
}

TEST_F(OneWayReduce, WhoDoesNotComeIsNamedByAll) {
  struct Case {
    int root;
    int late;
    std::size_t count;
  };
  const int last = ranks() - 1;
  for (const auto& [root, late, count] : {Case{0, 0, 1},
                                          {0, last, 1},
                                          {0, 0, 4096},
                                          {0, last, 4096},
                                          {last, last, 2048},
                                          {last, 0, 1}}) {
    on_ranks(
        [root = root, late = late, count = count](Communicator& comm) {
          const RollCall given_up(comm);
          const Numbers in(count, 1);
          Numbers out(count);
          try {
            for (int call = 0; call < 1'000'000; ++call) {
              if (call == 50 && comm.global_rank() == late) {
                EXPECT_TRUE(given_up.wait_for_others());
              }
              reduce(comm, in, out, root);
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
