// Joining and leaving: refusals, ranks that do not come or leave early, and what stays behind.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/leftovers.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class Lifecycle : public RankTest {};

void expect_sum(Communicator& comm) {
  std::int64_t value = comm.global_rank();
  comm.all_reduce(View(&value, 1, DType::i64));
  EXPECT_EQ(value, comm.world_size() * (comm.world_size() - 1) / 2);
}

void expect_nothing_since(const Leftovers& before) {
  EXPECT_EQ(before.in_process(), "");
  // The other ranks may be waiting for this one in the next test, but nothing is made without it.
  if (world().rank == 0) {
    EXPECT_EQ(before.in_dev_shm(), "");
  }
}

/** Runs `action`, which must throw PeerLost naming exactly `lost`. */
template <class Action>
void expect_lost(const std::vector<int>& lost, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "did not throw";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.ranks(), lost) << error.what();
    for (const int rank : lost) {
      EXPECT_NE(std::string(error.what()).find("rank " + std::to_string(rank)), std::string::npos)
          << error.what();
    }
  }
}

/** Runs `action`, which must throw InvalidArgument whose message has all `parts`. */
template <class Action>
void expect_refused(const std::vector<std::string>& parts, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "was not refused";
  } catch (const InvalidArgument& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(Lifecycle, AThousandCommunicatorsLeaveNothing) {
  // Of processes, and of two: more ranks share the cores.
  const bool thousand = ranks() == 2 && world().launch != Launch::threads;
  const std::uint64_t cycles = thousand ? 1000 : 100;
  on_ranks(expect_sum);
  const Leftovers before;
  if (world().launch == Launch::mpi) {
    for (std::uint64_t cycle = 0; cycle < cycles; ++cycle) on_ranks(expect_sum);
  } else {
    on_ranks([&](Communicator& comm) {
      const UniqueId base = agree_on_ticket(comm);
      for (std::uint64_t cycle = 0; cycle < cycles; ++cycle) {
        Communicator next(comm.global_rank(), ranks(), derive(base, cycle), short_timeout());
        if (cycle % 10 == 0) {
          const Buffer buffer = next.allocate(10'000);
          expect_sum(next);
        }
        if (cycle % 50 == 0) next.split(next.global_rank() % 2, 0);
      }
    });
  }
  expect_nothing_since(before);
}

TEST_F(Lifecycle, OneThatFailedLeavesNothingEither) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  if (world().launch == Launch::mpi) GTEST_SKIP() << "MPI's part of a failed one is left alone";
  on_ranks(expect_sum);
  const Leftovers before;
  for (int cycle = 0; cycle < 20; ++cycle) {
    on_ranks([](Communicator& comm) {
      std::vector<float> data(100);
      EXPECT_THROW(comm.all_reduce(View(data.data(), 10 + comm.global_rank(), DType::f32)),
                   MismatchError);
    });
  }
  expect_nothing_since(before);
}

TEST_F(Lifecycle, AUsedTicketIsRefusedWhileTheJobLives) {
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  on_ranks([](Communicator& comm) {
    const UniqueId id = agree_on_ticket(comm);
    Communicator job(comm.global_rank(), ranks(), id, short_timeout());
    expect_sum(job);
    comm.barrier();
    for (const int rank : {0, ranks() - 1}) {
      expect_refused({"UniqueId"}, [&] { Communicator(rank, ranks(), id, short_timeout(2s)); });
    }
    comm.barrier();
    expect_sum(job);
  });
}

TEST_F(Lifecycle, AUsedTicketIsRefusedAfterTheJobAsWell) {
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  on_ranks([](Communicator& comm) {
    const UniqueId id = agree_on_ticket(comm);
    const auto join = [&] { Communicator(comm.global_rank(), ranks(), id, short_timeout(2s)); };
    join();
    comm.barrier();  // all are gone
    expect_refused({"UniqueId"}, join);
  });
}

TEST_F(Lifecycle, ALocalRankThatIsTakenIsRefused) {
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    // The last two ranks come with the same number. Who is refused comes again with the right one.
    const UniqueId id = agree_on_ticket(comm);
    const int last = ranks() - 1;
    std::optional<Communicator> job;
    std::int32_t refused = 0;
    if (comm.global_rank() < last - 1) {
      job.emplace(comm.global_rank(), ranks(), id, short_timeout());
    } else {
      try {
        job.emplace(last - 1, ranks(), id, short_timeout());
      } catch (const InvalidArgument& error) {
        const char* named = ranks() == 2 ? "UniqueId" : "local_rank";
        EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
        refused = 1;
        job.emplace(last, ranks(), id, short_timeout());
      }
    }
    job->all_reduce(View(&refused, 1, DType::i32));
    EXPECT_EQ(refused, 1);
    expect_sum(*job);
  });
}

TEST_F(Lifecycle, AnotherWorldSizeIsRefused) {
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const UniqueId id = agree_on_ticket(comm);
    const int rank = comm.global_rank();
    if (rank == ranks() - 1) {
      expect_refused({"world_size", std::to_string(ranks() + 1), std::to_string(ranks())},
                     [&] { Communicator(rank, ranks() + 1, id, short_timeout()); });
    }
    Communicator job(rank, ranks(), id, short_timeout());
    expect_sum(job);
  });
}

TEST_F(Lifecycle, BadNumbersAreRefused) {
  const UniqueId id = UniqueId::create();
  expect_refused({"world_size", "0"}, [&] { Communicator(0, 0, id); });
  expect_refused({"world_size", "-4"}, [&] { Communicator(0, -4, id); });
  expect_refused({"local_rank", "2"}, [&] { Communicator(2, 2, id); });
  expect_refused({"local_rank", "-1"}, [&] { Communicator(-1, 2, id); });
  expect_refused({"timeout", "0"}, [&] { Communicator(0, 1, id, short_timeout(0s)); });
  Communicator(0, 1, id);  // none of them used the ticket up
}

TEST_F(Lifecycle, ARankThatNeverComesIsNamed) {
  if (!world().one_host()) GTEST_SKIP() << "tickets are for one host";
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    for (const int absent : {0, ranks() - 1}) {
      const UniqueId id = agree_on_ticket(comm);
      if (comm.global_rank() != absent) {
        const auto begin = std::chrono::steady_clock::now();
        expect_lost({absent},
                    [&] { Communicator(comm.global_rank(), ranks(), id, short_timeout(1s)); });
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
      }
      comm.barrier();
    }
  });
}

TEST_F(Lifecycle, ARankThatLeavesIsNamedByTheOthers) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int leaver : {0, ranks() - 1}) {
    on_ranks(
        [&](Communicator& comm) {
          if (comm.global_rank() == leaver) return expect_sum(comm);  // and on_ranks() destroys it
          const auto begin = std::chrono::steady_clock::now();
          expect_lost({leaver}, [&] {
            expect_sum(comm);  // fails as well if others miss the leaver before this rank ends it
            expect_sum(comm);
          });
          EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);  // not the deadline
          EXPECT_THROW(comm.barrier(), CommunicationError);
        },
        short_timeout(30s));
  }
}

TEST_F(Lifecycle, ARankThatLeavesOwesNoMessage) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  const int leaver = ranks() - 1;
  on_ranks(
      [&](Communicator& comm) {
        if (comm.global_rank() == leaver) return expect_sum(comm);
        try {
          expect_sum(comm);
        } catch (const PeerLost&) {  // rank 0 was quicker to miss the leaver
          EXPECT_NE(comm.global_rank(), 0);
        }
        if (comm.global_rank() != 0) return;
        const auto begin = std::chrono::steady_clock::now();
        std::int32_t value = 0;
        expect_lost({leaver}, [&] { comm.recv(View(&value, 1, DType::i32), leaver); });
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
      },
      short_timeout(30s));
}

TEST_F(Lifecycle, ALeaverDoesNotDisturbWhatIsComplete) {
  on_ranks([](Communicator& comm) {
    // Everybody leaves at once after the last collective, the large one still warm in the caches.
    std::vector<float> data(500'000, 1.0F);
    comm.all_reduce(View(std::span(data)));
    EXPECT_EQ(data, std::vector<float>(500'000, static_cast<float>(ranks())));
  });
  for (const int root : {0, ranks() - 1}) {  // who has nothing to wait for, and leaves first
    on_ranks([&](Communicator& comm) {
      std::vector<float> data(500'000, comm.global_rank() == root ? 3.0F : 0.0F);
      comm.broadcast(View(std::span(data)), root);
      EXPECT_EQ(data, std::vector<float>(500'000, 3.0F));
    });
    on_ranks([&](Communicator& comm) {
      std::vector<float> data(500'000, 1.0F);
      std::vector<float> sum(500'000);
      comm.reduce(View(std::span(data)), View(std::span(sum)), root);
      if (comm.global_rank() != root) return;
      EXPECT_EQ(sum, std::vector<float>(500'000, static_cast<float>(ranks())));
    });
  }
}

TEST_F(Lifecycle, AbortEndsTheOthersWithItsReason) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  for (const bool others_wait : {false, true}) {
    on_ranks([&](Communicator& comm) {
      const int quitter = ranks() - 1;
      if (comm.global_rank() == quitter) {
        expect_sum(comm);
        if (others_wait) std::this_thread::sleep_for(200ms);  // they need not be waiting yet
        comm.abort("the disk is full");
        EXPECT_THROW(comm.barrier(), CommunicationError);
        return;
      }
      try {
        expect_sum(comm);  // whose end the quitter may have seen before the others
        for (;;) comm.barrier();
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.ranks(), std::vector<int>{quitter}) << error.what();
        EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos)
            << error.what();
      }
    });
  }
}

TEST_F(Lifecycle, AnExceptionThroughItsScopeIsToldToTheOthers) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int thrower = ranks() - 1;
    const auto fail = [&] {
      auto part = comm.split(0, comm.global_rank());
      expect_sum(*part);
      if (comm.global_rank() == thrower) throw std::range_error("out of images");
      for (;;) part->barrier();
    };
    if (comm.global_rank() == thrower) {
      EXPECT_THROW(fail(), std::range_error);
      return;
    }
    try {
      fail();
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{thrower}) << error.what();
      EXPECT_EQ(error.reason().find("an exception ended its communicator"), 0U) << error.what();
    }
  });
}

TEST_F(Lifecycle, ARankThatStaysAwayIsNamedAfterTheTimeout) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  const auto body = [](Communicator& comm) {
    expect_sum(comm);
    const int late = ranks() - 1;
    const auto begin = std::chrono::steady_clock::now();
    if (comm.global_rank() == late) {
      std::this_thread::sleep_for(4s);
      // The first may find what the others sent before they gave up.
      const auto twice = [&] {
        comm.barrier();
        comm.barrier();
      };
      EXPECT_THROW(twice(), CommunicationError);
    } else {
      expect_lost({late}, [&] { comm.barrier(); });
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 950ms);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 3900ms);
    }
  };
  on_ranks(body, short_timeout(1s));
}

TEST_F(Lifecycle, TwoCommunicatorsLiveSideBySide) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> other = comm.split(0, -comm.global_rank());
    for (int round = 0; round < 10; ++round) {
      expect_sum(comm);
      expect_sum(*other);
    }
    other.reset();
    expect_sum(comm);
  });
}

TEST_F(Lifecycle, AForkedChildIsRefusedAndDoesNoHarm) {
  if (world().launch == Launch::threads) GTEST_SKIP() << "a process of many threads";
  on_ranks([](Communicator& comm) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool refused = false;
      try {
        comm.barrier();
      } catch (const CommunicationError&) {
        refused = true;
      }
      comm.abort("the parent must not hear of this");
      // They get the numbers of what the communicator had open.
      std::array<std::array<int, 2>, 8> strangers{};
      for (auto& ends : strangers) ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
      { const Communicator destroyed = std::move(comm); }
      const bool silent = std::all_of(strangers.begin(), strangers.end(), [](const auto& ends) {
        char byte = 0;
        return ::recv(ends[0], &byte, 1, MSG_DONTWAIT) < 0 &&
               ::recv(ends[1], &byte, 1, MSG_DONTWAIT) < 0;
      });
      std::_Exit(!refused ? 1 : !silent ? 2 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_sum(comm);
  });
}

TEST_F(Lifecycle, MovesLikeAValue) {
  on_ranks([](Communicator& comm) {
    Communicator taken = std::move(comm);
    EXPECT_THROW(comm.barrier(), CommunicationError);  // NOLINT(bugprone-use-after-move)
    EXPECT_THROW(static_cast<void>(comm.global_rank()), CommunicationError);
    comm.abort("nobody hears of it");
    expect_sum(taken);
    comm = std::move(taken);
    expect_sum(comm);
  });
}

}  // namespace
}  // namespace tutti::test
