// Notes among the ranks of a host: read in their order by all, written while there is room, refused
// by who makes another call.
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

TEST_F(LocalNotesTest, AreReadInTheirOrderWhoeverWritesThem) {
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

TEST_F(LocalNotesTest, WhoWritesGoesOnWhileThereIsRoom) {
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

TEST_F(LocalNotesTest, OneRankReadsWhatAllOthersHaveLeft) {
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

TEST_F(LocalNotesTest, WhoPassesDataOnHearsOfAFailureBeforeItTakesThem) {
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

TEST_F(LocalNotesTest, AnotherCountIsRefusedBeforeAnythingIsTaken) {
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
    expect_shown(text, "rank 11: broadcast(u8, count 9, root 0)");
    expect_shown(text, "broadcast(u8, count 8, root 0)");
  });
}

TEST_F(LocalNotesTest, TwoWhoTakeThemselvesForTheRootFindOut) {
  on_ranks([](LocalRank& rank) {
    Bytes data(8);
    const int root = rank.local.rank() == 1 ? 1 : 0;
    int calls = 0;
    const std::string text = rank.mismatch_in([&] {
      for (; calls < 10'000; ++calls) rank.broadcast(root, data);
    });
    EXPECT_LE(calls, 3 * static_cast<int>(Notebook::kNotes));
    expect_shown(text, "root 0)");
    expect_shown(text, "rank 11: broadcast(u8, count 8, root 1)");
  });
}

TEST_F(LocalNotesTest, WhoWaitsElsewhereIsFound) {
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
      expect_shown(text, "rank 1" + std::to_string(odd) + ": barrier()");
      expect_shown(text, "broadcast(u8, count 8, root 0)");
    });
  }
}

TEST_F(LocalNotesTest, WhoHasGoneOnHasItsEarlierRequestShown) {
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
    expect_shown(text, "rank 11: barrier()");
    expect_shown(text, "rank 10, 12: broadcast(u8, count 8, root 0)");
  });
}

}  // namespace
}  // namespace tutti::shm
