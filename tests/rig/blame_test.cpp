// Who is blamed, and when, where ranks come late or wait in another communicator.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/transport.hpp"
#include "rig/processes.hpp"
#include "support/world.hpp"

namespace tutti::test::blame_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience = 30s;

/** Four ranks, of which the second comes late, the third later, and the last one stops: the first
 * does not wait for a deadline each. */
TEST(Blame, OneDeadlineHoldsForAllRanksThatAreAwaited) {
  constexpr int kRanks = 4;
  constexpr std::chrono::milliseconds kTimeout = 2s;
  struct Board {
    Report report;
    std::atomic<std::int64_t> milliseconds;
  };
  const Shared<Board> board;
  const UniqueId id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      Communicator comm(rank, kRanks, id, short_timeout(kTimeout));
      comm.barrier();
      if (rank == kRanks - 1) ::raise(SIGSTOP);
      std::this_thread::sleep_for(rank * kTimeout * 9 / 10);  // its work
      const auto begin = Clock::now();
      const std::string outcome = outcome_of([&] { comm.barrier(); });
      if (rank != 0) return;
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      board->milliseconds = took.count();
      board->report.end_with(outcome);
    });
  }
  EXPECT_TRUE(ranks.wait(0, kPatience));
  EXPECT_TRUE(std::string(board->report.outcome.data()).starts_with("lost "));
  EXPECT_LT(board->milliseconds, 5200);  // with a deadline for each it takes 5900
}

/** Rank 2 stops. Rank 1 waits for it in a part, and rank 0 for rank 1 in the whole. */
void expect_the_stopped_one_to_be_blamed(bool by_split) {
  constexpr int kRanks = 3;
  const Shared<std::array<Report, kRanks>> reports;
  const Shared<std::atomic<bool>> waiting;
  const UniqueId id = UniqueId::create();
  const UniqueId part_id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      Communicator whole(rank, kRanks, id, short_timeout(2s));
      std::optional<Communicator> part;
      if (by_split) {
        part = whole.split(rank == 0 ? 0 : 1, 0);
      } else if (rank != 0) {
        part.emplace(rank - 1, kRanks - 1, part_id, short_timeout(2s));
      }
      whole.barrier();
      if (rank == 2) ::raise(SIGSTOP);
      float value = 0;
      const std::string outcome = outcome_of([&] {
        if (rank == 0) {
          *waiting = true;
          whole.recv(View(&value, 1, DType::f32), 1);
        } else {  // later, so that its own deadline is not the one that passes
          holds_within(kPatience, [&] { return (*waiting).load(); });
          std::this_thread::sleep_for(1s);
          part->barrier();
        }
      });
      (*reports)[static_cast<std::size_t>(rank)].end_with(outcome);
      // The end of this one must not be what the other one finds.
      holds_within(kPatience, [&] { return (*reports)[0].ended && (*reports)[1].ended; });
    });
  }
  EXPECT_TRUE(ranks.wait(0, kPatience));
  EXPECT_TRUE(ranks.wait(1, kPatience));
  const std::string of_whole = (*reports)[0].outcome.data();
  EXPECT_TRUE(of_whole.starts_with("lost 2: ")) << of_whole;
  const std::string of_part = (*reports)[1].outcome.data();
  EXPECT_TRUE(of_part.starts_with("lost 1: ")) << of_part;  // as rank 2 is known in the part
}

/** Four ranks, each of which waits for the next one in a communicator of the two: nobody sees more
 * than two of the four waits. */
TEST(Blame, TellsOfACircleThroughCommunicatorsOfTwo) {
  constexpr int kRanks = 4;
  constexpr std::chrono::milliseconds kTimeout = 1500ms;
  struct Board {
    std::array<Report, kRanks> reports;
    std::array<std::atomic<std::int64_t>, kRanks> milliseconds;
  };
  const Shared<Board> board;
  std::array<UniqueId, kRanks> ids{UniqueId::create(), UniqueId::create(), UniqueId::create(),
                                   UniqueId::create()};
  const UniqueId id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      const int before = (rank + kRanks - 1) % kRanks;
      std::optional<Communicator> next;
      std::optional<Communicator> last;
      const auto with_next = [&] {
        next.emplace(0, 2, ids[static_cast<std::size_t>(rank)], short_timeout(kTimeout));
      };
      if (rank % 2 == 0) with_next();
      last.emplace(1, 2, ids[static_cast<std::size_t>(before)], short_timeout(kTimeout));
      if (rank % 2 != 0) with_next();
      Communicator(rank, kRanks, id, short_timeout(kTimeout)).barrier();
      const auto begin = Clock::now();
      float value = 0;
      const std::string outcome = outcome_of([&] { next->recv(View(&value, 1, DType::f32), 1); });
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      board->milliseconds[static_cast<std::size_t>(rank)] = took.count();
      board->reports[static_cast<std::size_t>(rank)].end_with(outcome);
      holds_within(kPatience, [&] {  // the end of this one must not be what the others find
        return std::all_of(board->reports.begin(), board->reports.end(),
                           [](const Report& one) { return one.ended.load(); });
      });
    });
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_TRUE(ranks.wait(rank, kPatience)) << "rank " << rank << " waits for ever";
    const std::string outcome = board->reports[at].outcome.data();
    EXPECT_TRUE(outcome.starts_with("lost 1: ")) << outcome;
    EXPECT_NE(outcome.find("they wait for each other"), std::string::npos) << outcome;
    EXPECT_LT(board->milliseconds[at], 2900);  // with another deadline it would take 3000
  }
}

/** Rank 1 stops amid long messages of the others, each of which has one place where pieces wait to
 * be taken: so what they have for each other waits behind what rank 1 does not take, and they wait
 * for each other, too. */
TEST(Blame, WhoHasStoppedIsNamedThoughTheOthersWaitForEachOther) {
  constexpr int kRanks = 3;
  struct Board {
    std::array<Report, kRanks> reports;
    std::atomic<int> calls;
  };
  const Shared<Board> board;
  const UniqueId id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      Communicator comm(rank, kRanks, id, short_timeout(1s));
      std::array<std::vector<float>, kRanks> parts;
      const auto part = [&](int peer, std::int64_t count) {
        std::vector<float>& memory = parts[static_cast<std::size_t>(peer)];
        memory.resize(static_cast<std::size_t>(count));
        return View(memory.data(), count, DType::f32);
      };
      constexpr std::int64_t kLong = std::int64_t{1} << 21U;
      constexpr std::int64_t kShort = 1024;
      std::vector<Message> messages;
      if (rank == 1) {
        messages = {Message::recv(part(0, kLong), 0), Message::recv(part(2, kLong), 2)};
      } else {
        messages = {Message::send(part(1, kLong), 1), Message::send(part(rank, kShort), 2 - rank),
                    Message::recv(part(2 - rank, kShort), 2 - rank)};
      }
      board->reports[static_cast<std::size_t>(rank)].end_with(outcome_of([&] {
        for (;; ++board->calls) comm.exchange(messages);
      }));
    });
  }
  EXPECT_TRUE(holds_within(kPatience, [&] { return board->calls > 20; }));
  ranks.send(1, SIGSTOP);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(ranks.wait(rank, kPatience)) << "rank " << rank << " waits for ever";
    const std::string outcome = board->reports[static_cast<std::size_t>(rank)].outcome.data();
    EXPECT_TRUE(outcome.starts_with("lost 1: ")) << outcome;
  }
}

/** Rank 0 has come to the rendezvous of a part; rank 1 has not, as it waits in the whole for rank
 * 2, which has stopped. */
TEST(Blame, FollowsWhoDoesNotComeToASplit) {
  constexpr int kRanks = 3;
  constexpr std::chrono::milliseconds kTimeout = 1s;
  const Shared<std::array<Report, kRanks>> reports;
  const UniqueId id = UniqueId::create();
  const UniqueId part_id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      shm::ShmTransport whole(id, rank, {0, 1, 2}, kTimeout);
      whole.run(Call::barrier());
      if (rank == 2) ::raise(SIGSTOP);
      const std::string outcome = outcome_of([&] {
        if (rank == 0) {
          const shm::Local part(part_id, 0, {0, 1}, kTimeout,
                                whole.local().group().participants_of({0, 1}));
        } else {  // later, so that its own deadline is not the one that passes
          std::this_thread::sleep_for(kTimeout / 2);
          float value = 0;
          whole.run(Call::recv(View(&value, 1, DType::f32), 2));
        }
      });
      (*reports)[static_cast<std::size_t>(rank)].end_with(outcome);
    });
  }
  EXPECT_TRUE(ranks.wait(0, kPatience));
  const std::string outcome = (*reports)[0].outcome.data();
  EXPECT_TRUE(outcome.starts_with("lost 2: ")) << outcome;
}

TEST(Blame, LeadsThroughAPartOfASplit) { expect_the_stopped_one_to_be_blamed(true); }
TEST(Blame, LeadsThroughACommunicatorMadeForItself) { expect_the_stopped_one_to_be_blamed(false); }

/** Rank 2 dies while rank 0 receives from any source, and rank 1 computes: it may still send, until
 * the deadline. */
TEST(Blame, OfARecvFromAnySourceTheDeadAreNamedAtTheDeadline) {
  constexpr int kRanks = 3;
  const Shared<Report> report;
  const UniqueId id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.start([&, rank] {
      Communicator comm(rank, kRanks, id, short_timeout(2s));
      float value = 0;
      const View view(&value, 1, DType::f32);
      if (rank == 1) comm.recv(view, 2);
      if (rank == 2) {
        comm.send(view, 1);
        ::raise(SIGKILL);
      }
      if (rank == 1) {
        comm.send(view, 0);
        holds_within(kPatience, [&] { return report->ended.load(); });
      }
      if (rank != 0) return;
      comm.recv(view, kAnySource);  // of rank 1, whether rank 2 has died or not
      const auto begin = Clock::now();
      const std::string outcome = outcome_of([&] { comm.recv(view, kAnySource); });
      report->end_with((Clock::now() - begin < 2s ? "too early: " : "") + outcome);
    });
  }
  EXPECT_TRUE(ranks.wait(0, kPatience));
  const std::string outcome = report->outcome.data();
  EXPECT_TRUE(outcome.starts_with("lost 2: ")) << outcome;
}

/** Everybody else has died. */
TEST(Blame, OfARecvFromAnySourceTheDeadAreNamedAtOnceIfNobodyIsLeft) {
  const Shared<Report> report;
  const UniqueId id = UniqueId::create();
  Processes ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.start([&, rank] {
      Communicator comm(rank, 3, id, short_timeout(kPatience));
      comm.barrier();
      if (rank != 0) ::raise(SIGKILL);
      float value = 0;
      report->end_with(outcome_of([&] { comm.recv(View(&value, 1, DType::f32), kAnySource); }));
    });
  }
  EXPECT_TRUE(ranks.wait(0, kPatience / 2));
  const std::string outcome = report->outcome.data();
  EXPECT_TRUE(outcome.starts_with("lost 1 2: ")) << outcome;
}

}  // namespace
}  // namespace tutti::test::blame_test
