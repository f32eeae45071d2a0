// Notes among the ranks of a host, which are threads here: read in their order by all, written
// while there is room, refused by who makes another call.
#include "comm/shm/local_notes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;
using test::on_threads;

constexpr int kRanks = 3;
constexpr std::array<int, kRanks> kNames{10, 11, 12};

/** One rank of the host. */
class LocalRank {
 public:
  LocalRank(const UniqueId& id, int rank, std::chrono::milliseconds timeout)
      : local(id, rank, {kNames.begin(), kNames.end()}, timeout) {
    local.group().set_idle([this](std::span<const int> /*names*/) { notes.look(); });
  }

  /** Begins the next broadcast, of `bytes` bytes from `root`. */
  void begin(int root, std::int64_t bytes) {
    const std::uint64_t before = last.sequence == 0 ? 0 : last.hash();
    const std::uint64_t sequence = last.sequence + 1;
    last = Signature{.sequence = sequence,
                     .operation = Operation::broadcast,
                     .root = root,
                     .count = bytes,
                     .before = before};
    signatures.begin(last);
  }
  /** A broadcast of `data`. */
  void broadcast(int root, Bytes& data) {
    begin(root, std::ssize(data));
    if (local.rank() == root) {
      std::ranges::copy(data, notes.make_room(std::ssize(data)).begin());
      notes.leave({});
    } else {
      notes.read(root, data, kNames[static_cast<std::size_t>(root)]);
    }
  }
  /** Runs `action`, which must find that the ranks make different calls, or hear of it: the text.
   */
  std::string mismatch_in(const std::function<void()>& action) {
    try {
      action();
      ADD_FAILURE() << "rank " << local.rank() << " noticed nothing";
    } catch (const MismatchError& error) {
      local.group().fail_mismatch(error.what());  // as a transport does
      return error.what();
    }
    return "";
  }

  Local local;
  Signatures signatures{local};
  LocalNotes notes{local.group(), signatures};
  Signature last;
};

/** Waits for another rank; throws if it does not come. */
void until(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) throw Error("another rank has not come");
    std::this_thread::yield();
  }
}

void on_ranks(const std::function<void(LocalRank&)>& body,
              std::chrono::milliseconds timeout = 20s) {
  const UniqueId id = UniqueId::create();
  on_threads(kRanks, [&](int number) {
    LocalRank rank(id, number, timeout);
    body(rank);
  });
}

void expect_shown(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(LocalNotesTest, AreReadInTheirOrderWhoeverWritesThem) {
  on_ranks([](LocalRank& rank) {
    constexpr std::array<std::size_t, 4> kSizes{0, 1, 1000, LocalNotes::kMost};
    for (int call = 0; call < 1000; ++call) {
      const int root = call / 50 % kRanks;
      const auto number = static_cast<std::size_t>(call);
      const auto value = static_cast<std::byte>(call % 251);
      Bytes data(kSizes[number % kSizes.size()],
                 rank.local.rank() == root ? value : std::byte{255});
      rank.broadcast(root, data);
      ASSERT_EQ(data, Bytes(data.size(), value)) << call;
    }
  });
}

TEST(LocalNotesTest, WhoWritesGoesOnWhileThereIsRoom) {
  std::atomic<bool> written = false;
  on_ranks([&](LocalRank& rank) {
    until([&] { return rank.local.rank() == 0 || written; });
    for (std::uint32_t call = 0; call < Notebook::kNotes; ++call) {
      Bytes data(8, rank.local.rank() == 0 ? static_cast<std::byte>(call) : std::byte{255});
      rank.broadcast(0, data);
      ASSERT_EQ(data.front(), static_cast<std::byte>(call));
    }
    written = true;
  });
}

TEST(LocalNotesTest, OneRankReadsWhatAllOthersHaveLeft) {
  on_ranks([](LocalRank& rank) {
    const int own = rank.local.rank();
    for (int call = 0; call < 1000; ++call) {
      const int reader = call / 50 % kRanks;
      const auto value_of = [=](int one) { return static_cast<std::byte>((call + one) % 251); };
      rank.begin(reader, 8);
      if (own != reader) {
        std::ranges::fill(rank.notes.make_room(8), value_of(own));
        rank.notes.leave({});
      } else {
        std::array<const void*, kRanks> parts{};
        rank.notes.collect(parts);
        for (int writer = 0; writer < kRanks; ++writer) {
          if (writer == reader) continue;
          const auto* data = static_cast<const std::byte*>(parts[static_cast<std::size_t>(writer)]);
          ASSERT_EQ(Bytes(data, data + 8), Bytes(8, value_of(writer))) << call;
        }
        rank.notes.release();
      }
      if (call % 3 == 0) rank.notes.pass_over();  // as all do here
    }
  });
}

TEST(LocalNotesTest, WhoLeavesNothingForTheReaderIsNamed) {
  std::atomic<bool> found = false;
  on_ranks(
      [&](LocalRank& rank) {
        rank.begin(0, 8);
        if (rank.local.rank() == 1) {
          rank.notes.make_room(8);
          rank.notes.leave({});
        }
        if (rank.local.rank() != 0) return until([&] { return found.load(); });
        std::array<const void*, kRanks> parts{};
        try {
          rank.notes.collect(parts);
          ADD_FAILURE() << "rank 2 was waited for";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{12}) << error.what();
        }
        found = true;
      },
      1s);
}

/** Rank 2 comes while rank 0 already finds out who keeps it waiting. */
TEST(LocalNotesTest, WhoComesAtTheLastMomentIsNotNamed) {
  constexpr auto kTimeout = 1s;
  std::atomic<bool> is_time = false;
  std::atomic<bool> given = false;
  std::atomic<bool> found = false;
  on_ranks(
      [&](LocalRank& rank) {
        rank.begin(0, 8);
        if (rank.local.rank() == 2) {
          until([&] { return is_time.load(); });
          rank.notes.make_room(8);
          rank.notes.leave({});
          given = true;
        }
        if (rank.local.rank() != 0) return until([&] { return found.load(); });
        const auto start = std::chrono::steady_clock::now();
        rank.local.group().set_idle([&](std::span<const int> /*names*/) {
          is_time = std::chrono::steady_clock::now() - start > kTimeout + 100ms;
          if (is_time) until([&] { return given.load(); });
        });
        std::array<const void*, kRanks> parts{};
        try {
          rank.notes.collect(parts);
          ADD_FAILURE() << "rank 1 was waited for";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{11}) << error.what();
        }
        EXPECT_TRUE(given);
        found = true;
      },
      kTimeout);
}

TEST(LocalNotesTest, WhoDoesNotReadIsWaitedForAndNamed) {
  std::atomic<int> found = 0;
  on_ranks(
      [&](LocalRank& rank) {
        if (rank.local.rank() == 2) {
          until([&] { return found == 2; });
          return;
        }
        Bytes data(8);
        std::uint32_t calls = 0;
        try {
          for (;; ++calls) rank.broadcast(0, data);
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{12}) << error.what();
        }
        EXPECT_EQ(calls, Notebook::kNotes);
        ++found;
      },
      1s);
}

/** Rank 2 reads nothing until both others wait: the writer for it, and rank 1 for the writer, which
 * had been away before. */
TEST(LocalNotesTest, WhoHoldsUpTheWriterIsLateAndTheWriterIsNot) {
  constexpr auto kHeldUp = 20ms;
  const Call noted = Call::barrier();  // any collective
  std::atomic<bool> full = false;
  on_ranks([&](LocalRank& rank) {
    record::Journal& journal = rank.local.group().journal();
    journal.count_waits(kNames.back() + 1);
    const auto call = [&](const std::function<void(Bytes&)>& action) {
      Bytes data(8);
      journal.begin(noted);
      action(data);
      journal.end(record::Lane::collective, record::CallState::done);
    };
    const auto late = [&](std::size_t peer) {
      return journal.seconds_waited().at(static_cast<std::size_t>(kNames.at(peer)));
    };
    const auto one_more = [&](Bytes& data) { rank.broadcast(0, data); };
    if (rank.local.rank() == 2) {
      for (const int waiting : {0, 1}) {
        const auto& waits_for = rank.local.group().control().slot(waiting).waiting_for;
        const auto awaited = waiting == 0 ? 2 : 0;
        until([&] { return full && waits_for.front() == awaited; });
      }
      std::this_thread::sleep_for(kHeldUp);
      for (std::uint32_t number = 0; number <= Notebook::kNotes; ++number) call(one_more);
      EXPECT_EQ(late(0), 0);
      return;
    }
    for (std::uint32_t number = 0; number < Notebook::kNotes; ++number) call(one_more);
    if (rank.local.rank() == 1) {
      until([&] { return full.load(); });
      call(one_more);
      EXPECT_EQ(late(0), 0);
    } else {
      const std::uint64_t come = journal.now();
      full = true;
      call([&](Bytes& data) {
        rank.begin(0, std::ssize(data));
        rank.notes.make_room(std::ssize(data));
        rank.notes.leave({0, come});
      });
      EXPECT_GE(late(2), std::chrono::duration<double>(kHeldUp).count());
    }
  });
}

TEST(LocalNotesTest, AWriterIsLateByTheTimeThatTheAuthorWasAway) {
  const Call noted = Call::barrier();  // any collective
  on_ranks([&](LocalRank& rank) {
    record::Journal& journal = rank.local.group().journal();
    journal.count_waits(kNames.back() + 1);
    const std::uint64_t start = journal.now();
    Bytes data(8);
    journal.begin(noted);
    if (rank.local.rank() == 0) {
      for (const int reader : {1, 2}) {
        const auto& waits_for = rank.local.group().control().slot(reader).waiting_for;
        until([&] { return waits_for.front() == 0; });
      }
      std::this_thread::sleep_for(10ms);
      rank.begin(0, std::ssize(data));
      rank.notes.make_room(std::ssize(data));
      rank.notes.leave({start, journal.now()});
    } else {
      rank.broadcast(0, data);
    }
    journal.end(record::Lane::collective, record::CallState::done);
    const double late = journal.seconds_waited()[static_cast<std::size_t>(kNames.front())];
    if (rank.local.rank() == 0) {
      EXPECT_EQ(late, 0);
    } else {
      EXPECT_GE(late, 0.01);
    }
  });
}

/** A leader writes notes without its host: it has waited for another host in two calls, one of a
 * meeting and one of a note, before rank 1 looks at the first, or in one. */
TEST(LocalNotesTest, AWaitOfALeaderThatHasGoneOnIsNotCountedInAnEarlierCall) {
  const Call noted = Call::barrier();  // any collective
  for (const int calls : {1, 2}) {
    std::atomic<bool> has_gone_on = false;
    on_ranks([&](LocalRank& rank) {
      LocalGroup& group = rank.local.group();
      record::Journal& journal = group.journal();
      journal.count_waits(kNames.back() + 1);
      journal.begin(noted);
      if (rank.local.rank() == 0) {
        for (int call = 1; call <= calls; ++call) {
          const std::uint64_t since = journal.now();
          std::this_thread::sleep_for(5ms);
          group.note_wait_for(static_cast<std::uint64_t>(call), kNames.back(), since, 1s);
        }
        has_gone_on = true;
      } else {
        until([&] { return has_gone_on.load(); });
        group.share_wait_between(1, 0);
      }
      journal.end(record::Lane::collective, record::CallState::done);
      const double late = journal.seconds_waited()[static_cast<std::size_t>(kNames.back())];
      const bool counts = rank.local.rank() == 0 || calls == 1;
      EXPECT_EQ(late >= 0.005, counts) << late;
      EXPECT_EQ(late == 0, !counts) << late;
    });
  }
}

TEST(LocalNotesTest, WhoPassesDataOnHearsOfAFailureBeforeItTakesThem) {
  std::atomic<bool> waits = false;
  std::atomic<bool> failed = false;
  on_ranks([&](LocalRank& rank) {
    if (rank.local.rank() == 0) {
      rank.begin(1, 8);
      rank.notes.make_room(8);
      waits = true;
      until([&] { return failed.load(); });
      EXPECT_THROW(rank.notes.leave({}), MismatchError);
    } else if (rank.local.rank() == 1) {
      until([&] { return waits.load(); });
      rank.local.group().fail_mismatch("another call");
      failed = true;
    }
  });
}

TEST(LocalNotesTest, AnotherCountIsRefusedBeforeAnythingIsTaken) {
  on_ranks([](LocalRank& rank) {
    Bytes data(rank.local.rank() == 1 ? 9 : 8, std::byte{7});
    const Bytes before = data;
    if (rank.local.rank() == 0) data.assign(8, std::byte{1});
    const std::string text = rank.mismatch_in([&] {
      for (;;) rank.broadcast(0, data);
    });
    if (rank.local.rank() == 1) {
      EXPECT_EQ(data, before);
    }
    expect_shown(text, "rank 11: broadcast(u8, count 9, root 0) as collective number 1");
    expect_shown(text, "broadcast(u8, count 8, root 0) as collective number 1");
  });
}

TEST(LocalNotesTest, TwoWhoTakeThemselvesForTheRootFindOut) {
  on_ranks([](LocalRank& rank) {
    Bytes data(8);
    const int root = rank.local.rank() == 1 ? 1 : 0;
    int calls = 0;
    const std::string text = rank.mismatch_in([&] {
      for (; calls < 10'000; ++calls) rank.broadcast(root, data);
    });
    EXPECT_LE(calls, 3 * static_cast<int>(Notebook::kNotes));
    expect_shown(text, "root 0) as collective number 1");
    expect_shown(text, "rank 11: broadcast(u8, count 8, root 1) as collective number 1");
  });
}

TEST(LocalNotesTest, WhoWaitsElsewhereIsFound) {
  for (const int odd : {0, 1}) {
    std::atomic<int> have_read = 0;
    on_ranks([&](LocalRank& rank) {
      Bytes data(8);
      for (int call = 0; call < 5; ++call) rank.broadcast(0, data);
      ++have_read;
      until([&] { return have_read == kRanks; });  // or a failure would end calls that are alike
      const std::string text = rank.mismatch_in([&] {
        if (rank.local.rank() == odd) {
          rank.signatures.begin(Signature{.sequence = 6, .operation = Operation::barrier});
          rank.signatures.meet(Task::meet());
          return;
        }
        for (;;) rank.broadcast(0, data);
      });
      expect_shown(text, "rank 1" + std::to_string(odd) + ": barrier() as collective number 6");
      expect_shown(text, "broadcast(u8, count 8, root 0) as collective number 6");
    });
  }
}

TEST(LocalNotesTest, WhoHasGoneOnHasItsEarlierRequestShown) {
  std::atomic<int> gone_on = 0;
  on_ranks([&](LocalRank& rank) {
    Bytes data(8);
    if (rank.local.rank() == 1) {
      until([&] { return gone_on >= 2; });
    } else {
      rank.broadcast(0, data);  // which rank 1 leaves out
      ++gone_on;
    }
    const std::string text = rank.mismatch_in([&] {
      Signature barrier{.sequence = rank.last.sequence + 1, .operation = Operation::barrier};
      rank.signatures.begin(barrier);
      if (rank.signatures.meet(Task::meet())) return;
      rank.notes.look();
    });
    expect_shown(text, "rank 11: barrier() as collective number 1");
    expect_shown(text, "rank 10, 12: broadcast(u8, count 8, root 0) as collective number 1");
  });
}

}  // namespace
}  // namespace tutti::shm
