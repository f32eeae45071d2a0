// Store: values of every size, whoever sets and asks, waits and how they end, and memory.
#include "tutti/store.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "support/thrown.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class StoreTest : public RankTest {};

// Around lines, pages, the shortest block with memory of its own, and the pieces that it comes in.
constexpr std::int64_t kSizes[] = {0,       1,       2,       63,           64,      65,
                                   4095,    4096,    4097,    100'000,      130'900, 131'071,
                                   131'072, 131'073, 1 << 20, (3 << 20) + 1};

std::vector<std::byte> value_of(int rank, std::int64_t size, int salt = 0) {
  std::vector<std::byte> value(static_cast<std::size_t>(size));
  std::uint32_t number = static_cast<std::uint32_t>(rank * 31 + salt * 17 + 1);
  for (std::byte& byte : value) {
    number = number * 1664525 + 1013904223;
    byte = static_cast<std::byte>(number >> 24U);
  }
  return value;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char letter) { return static_cast<std::byte>(letter); });
  return bytes;
}

std::string name_of(int rank, std::int64_t size) {
  return "rank " + std::to_string(rank) + ", " + std::to_string(size) + " bytes";
}

TEST_F(StoreTest, EveryRankGetsWhatEveryRankSets) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    for (const std::int64_t size : kSizes) {
      store.set(name_of(comm.global_rank(), size), value_of(comm.global_rank(), size));
    }
    for (int rank = ranks() - 1; rank >= 0; --rank) {
      for (const std::int64_t size : kSizes) {
        EXPECT_EQ(store.get(name_of(rank, size)), value_of(rank, size)) << name_of(rank, size);
      }
    }
    comm.barrier();
  });
}

TEST_F(StoreTest, ANewValueTakesTheOldOnesPlace) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const int next = (comm.global_rank() + 1) % ranks();
    int salt = 0;
    for (const std::int64_t size : kSizes) {
      store.set("of " + std::to_string(comm.global_rank()),
                value_of(comm.global_rank(), size, ++salt));
      comm.barrier();
      EXPECT_EQ(store.get("of " + std::to_string(next), 0ms), value_of(next, size, salt));
      comm.barrier();
    }
  });
}

TEST_F(StoreTest, KeysAreAnyBytes) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const std::vector<std::string> keys{
        "",         std::string("\0", 1),     std::string("\0\0", 2),
        "\xFF\xFE", std::string(65'535, 'k'), std::string(65'535, 'k') + "."};
    if (comm.global_rank() == ranks() - 1) {
      for (const std::string& key : keys) store.set(key, bytes_of(std::to_string(key.size())));
    }
    for (const std::string& key : keys) {
      EXPECT_EQ(store.get(key), bytes_of(std::to_string(key.size())));
    }
    comm.barrier();
  });
}

TEST_F(StoreTest, ATimeoutMayBeTheLongestThereIs) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    for (int round = 0; round < 10; ++round) {  // some of the others wait
      const std::string key = "round " + std::to_string(round);
      comm.barrier();
      if (comm.global_rank() == 0) store.set(key, bytes_of(key));
      EXPECT_EQ(store.get(key, std::chrono::milliseconds::max()), bytes_of(key));
    }
    comm.barrier();
  });
}

TEST_F(StoreTest, EachValueIsPoppedOnce) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    constexpr std::int64_t kRounds = 50;
    for (int round = 0; round < kRounds; ++round) {  // everybody asks before anybody knows of it
      if (comm.global_rank() == 0) store.set("turn", bytes_of(std::to_string(round)));
      try {
        store.pop("turn", round % 2 == 0 ? 0ms : 1ms);
        store.add("popped", 1);
      } catch (const DeadlineExceeded&) {
      }
      comm.barrier();
      if (comm.global_rank() == 0) {
        try {
          store.pop("turn", 0ms);
          store.add("popped", 1);
        } catch (const DeadlineExceeded&) {
        }
      }
      comm.barrier();
    }
    EXPECT_EQ(store.add("popped", 0), kRounds);
    comm.barrier();
  });
}

TEST_F(StoreTest, NumbersAddUpOverRanksAndThreads) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    constexpr int kThreads = 3;
    constexpr std::int64_t kTimes = 200;
    std::vector<std::vector<std::int64_t>> sums(kThreads);
    std::vector<std::thread> threads;
    for (auto& mine : sums) {
      threads.emplace_back([&] {
        for (std::int64_t i = 0; i < kTimes; ++i) mine.push_back(store.add("count", 1));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& mine : sums) EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    comm.barrier();
    EXPECT_EQ(store.add("count", 0), kThreads * kTimes * ranks());
    EXPECT_EQ(store.get("count"), bytes_of(std::to_string(kThreads * kTimes * ranks())));
    comm.barrier();
    if (comm.global_rank() == 0) {
      EXPECT_EQ(store.add("count", -kThreads * kTimes * ranks() - 7), -7);
      store.set("word", bytes_of("7 apples"));
      EXPECT_NE(text_of<InvalidArgument>([&] { store.add("word", 1); }).find("\"word\""),
                std::string::npos);
      store.set("most", bytes_of("9223372036854775807"));
      EXPECT_NE(text_of<InvalidArgument>([&] { store.add("most", 1); }).find("\"most\""),
                std::string::npos);
      EXPECT_EQ(store.add("most", -1), INT64_MAX - 1);
    }
    comm.barrier();
  });
}

TEST_F(StoreTest, WhatIsNoNumberOrNoKeyIsRefused) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const std::string own = "of " + std::to_string(comm.global_rank());
    for (const std::string& value :
         {std::string("word"), std::string(21, '0'), std::string(64, '0') + "x"}) {
      store.set(own, bytes_of(value));
      EXPECT_NE(text_of<InvalidArgument>([&] { store.add(own, 1); }).find("is no number"),
                std::string::npos);
      EXPECT_EQ(store.get(own), bytes_of(value));
    }
    store.set(own, bytes_of("-9223372036854775808"));
    EXPECT_EQ(store.add(own, 1), std::numeric_limits<std::int64_t>::min() + 1);
    const std::string longest(65'536, 'k');
    EXPECT_GE(store.add(longest, 1), 1);
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] { store.set(longest + "k", {}); }, [&] { store.add(longest + "k", 1); },
             [&] { store.get(longest + "k"); }, [&] { store.pop(longest + "k"); }}) {
      EXPECT_EQ(text_of<InvalidArgument>(call), "key has 65537 bytes, but must have at most 65536");
    }
    comm.barrier();
  });
}

TEST_F(StoreTest, ThreadsSetGetAndPopAtTheSameTime) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
      threads.emplace_back([&, number] {
        for (int round = 0; round < 20; ++round) {
          for (const std::int64_t size :
               {std::int64_t{10}, std::int64_t{5000}, std::int64_t{200'000}}) {
            const std::string there = "for " + std::to_string((comm.global_rank() + 1) % ranks()) +
                                      " " + std::to_string(number);
            const std::string here =
                "for " + std::to_string(comm.global_rank()) + " " + std::to_string(number);
            const int before = (comm.global_rank() + ranks() - 1) % ranks();
            store.set(there, value_of(comm.global_rank(), size, round));
            EXPECT_EQ(store.pop(here), value_of(before, size, round));
            store.set("taken " + there, {});
            store.pop("taken " + there);
            store.set("next " + here, {});
            store.pop("next " + there);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    comm.barrier();
  });
}

TEST_F(StoreTest, AValueThatChangesIsSeenWhole) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    constexpr int kTimes = 40;
    const std::int64_t size = 300'000 + 1000 * comm.global_rank();
    store.set("it", std::vector<std::byte>(1));
    for (int i = 0; i < kTimes; ++i) {
      const auto own = static_cast<std::byte>(1 + i + comm.global_rank() * kTimes);
      store.set("it", std::vector<std::byte>(static_cast<std::size_t>(size), own));
      const std::vector<std::byte> seen = store.get("it");
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(),
                              [&](std::byte one) { return one == seen.front(); }));
    }
    comm.barrier();
  });
}

// --- How waits end ------------------------------------------------------------------------------

TEST_F(StoreTest, AtTheDeadlineTheKeyIsNamedAndNothingIsBroken) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const std::string key = "of " + std::to_string(comm.global_rank());
    for (const auto timeout : {0ms, 1ms, 120ms}) {
      const auto begin = std::chrono::steady_clock::now();
      const std::string text =
          text_of<DeadlineExceeded>([&] { store.get("missing", timeout); }) +
          text_of<DeadlineExceeded>([&] { store.pop("missing too", timeout); });
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * timeout);
      EXPECT_NE(text.find("\"missing\""), std::string::npos) << text;
      EXPECT_NE(text.find("\"missing too\""), std::string::npos) << text;
    }
    EXPECT_THROW(store.get("x", -1ms), InvalidArgument);
    store.set(key, bytes_of("there"));
    EXPECT_EQ(store.pop(key), bytes_of("there"));
    comm.barrier();
  });
}

TEST_F(StoreTest, WithoutATimeoutTheCommunicatorsCounts) {
  on_ranks(
      [](Communicator& comm) {
        Store store(comm);
        const std::string text = text_of<DeadlineExceeded>([&] { store.get("missing"); });
        EXPECT_NE(text.find("1.5 s"), std::string::npos) << text;
        comm.barrier();
      },
      short_timeout(1500ms));
}

TEST_F(StoreTest, AnAbortEndsTheWaits) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    Store store(comm);
    store.set("there", {});
    if (comm.global_rank() == ranks() - 1) {
      for (int rank = 0; rank < ranks() - 1; ++rank) store.get(std::to_string(rank));
      return comm.abort("had enough");
    }
    const std::string text = text_of<PeerLost>([&] {
      store.set(std::to_string(comm.global_rank()), {});
      store.get("missing");
    });
    if (world().one_host()) {  // otherwise rank 0 may have ended, which keeps the store
      EXPECT_NE(text.find("rank " + std::to_string(ranks() - 1)), std::string::npos) << text;
      EXPECT_NE(text.find("had enough"), std::string::npos) << text;
      EXPECT_EQ(store.get("there"), std::vector<std::byte>());
    }
  });
}

TEST_F(StoreTest, OutlivesTheCommunicator) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> part = comm.split(0, comm.global_rank());
    Store store(*part);
    part.reset();
    store.set(std::to_string(comm.global_rank()), {});
    for (int rank = 0; rank < ranks(); ++rank) store.get(std::to_string(rank));
    comm.barrier();
  });
}

TEST_F(StoreTest, SeveralAreApart) {
  on_ranks([](Communicator& comm) {
    Store one(comm);
    Store other(comm);
    one.set("key " + std::to_string(comm.global_rank()), {});
    comm.barrier();
    for (int rank = 0; rank < ranks(); ++rank) {
      EXPECT_THROW(other.get("key " + std::to_string(rank), 0ms), DeadlineExceeded);
    }
    comm.barrier();
  });
}

// --- Memory -------------------------------------------------------------------------------------

TEST_F(StoreTest, AValueForWhichThereIsNoMemoryIsRefusedAndTheOldOneStays) {
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const std::string key = "of " + std::to_string(comm.global_rank());
    store.set(key, bytes_of("old"));
    comm.barrier();
    constexpr std::size_t kMuch = std::size_t{1} << 44U;  // is not touched
    const std::byte first{};
    const std::string text = text_of<SystemError>([&] { store.set(key, {&first, kMuch}); });
    EXPECT_NE(text.find("\"" + key + "\""), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(kMuch) + " bytes"), std::string::npos) << text;
    EXPECT_EQ(store.get(key), bytes_of("old"));
    comm.barrier();
  });
}

TEST_F(StoreTest, AForkedChildIsRefused) {
  if (world().launch != Launch::fork) GTEST_SKIP() << "the ranks are no processes of this test's";
  on_ranks([](Communicator& comm) {
    Store store(comm);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        store.set("from a child", {});
      } catch (const CommunicationError&) {
        std::_Exit(7);
      }
      std::_Exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    comm.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
