// Whom ranks of a host wait for that leave each other notes: who is late, and who is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "local_notes_fixture.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

using namespace std::chrono_literals;

TEST_F(LocalNotesTest, WhoLeavesNothingForTheReaderIsNamed) {
  std::atomic<bool> found = false;
  on_ranks(
      [&](LocalRank& rank) {
        rank.begin(0, 8);
        if (rank.local.rank() == 1) {
          rank.notes.make_room(8);
          rank.notes.leave({});
        }
        if (rank.local.rank() != 0) return until([&] { return found.load(); });
        expect_missing(rank, 12);
        found = true;
      },
      1s);
}

/** Rank 2 comes while rank 0 already finds out who keeps it waiting. */
TEST_F(LocalNotesTest, WhoComesAtTheLastMomentIsNotNamed) {
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
        expect_missing(rank, 11);
        EXPECT_TRUE(given);
        found = true;
      },
      kTimeout);
}

TEST_F(LocalNotesTest, WhoDoesNotReadIsWaitedForAndNamed) {
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
TEST_F(LocalNotesTest, WhoHoldsUpTheWriterIsLateAndTheWriterIsNot) {
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

TEST_F(LocalNotesTest, AWriterIsLateByTheTimeThatTheAuthorWasAway) {
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
TEST_F(LocalNotesTest, AWaitOfALeaderThatHasGoneOnIsNotCountedInAnEarlierCall) {
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

}  // namespace
}  // namespace tutti::shm
