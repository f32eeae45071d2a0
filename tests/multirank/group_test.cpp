// group: made by its members alone, in any order and any number; what happens where they disagree.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/thrown.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class Group : public RankTest {};

bool has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/** The group has these ranks of `whole`, in this order, and works. */
void expect_members(Communicator& group, const Communicator& whole, const std::vector<int>& ranks) {
  const auto size = std::ssize(ranks);
  ASSERT_EQ(group.world_size(), size);
  const std::int32_t mine = whole.global_rank();
  EXPECT_EQ(ranks[static_cast<std::size_t>(group.global_rank())], mine);
  std::vector<std::int32_t> members(ranks.size());
  group.all_gather(ConstView(&mine, 1, DType::i32), View(std::span(members)));
  EXPECT_EQ(members, ranks);
  for (const std::size_t count : {std::size_t{1}, std::size_t{17}, std::size_t{100'001}}) {
    std::vector<std::int64_t> values(count, mine + 1);
    group.all_reduce(View(std::span(values)));
    const std::int64_t sum = std::accumulate(ranks.begin(), ranks.end(), std::int64_t{size});
    EXPECT_EQ(values, std::vector<std::int64_t>(count, sum));
  }
}

TEST_F(Group, EverySetOfRanksInBothOrders) {
  on_ranks([](Communicator& comm) {
    for (int set = 1; set < 1 << ranks(); ++set) {
      std::vector<int> members;
      for (int rank = 0; rank < ranks(); ++rank) {
        if ((set >> rank & 1) != 0) members.push_back(rank);
      }
      for (int order = 0; order < 2; ++order) {
        if (has(members, comm.global_rank())) {
          Communicator group = comm.group(members);
          expect_members(group, comm, members);
        }
        std::reverse(members.begin(), members.end());
      }
    }
    comm.barrier();
  });
}

TEST_F(Group, TheOthersNeedNotCall) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    std::vector<int> members(static_cast<std::size_t>(ranks()) - 1);
    std::iota(members.begin(), members.end(), 0);
    if (comm.global_rank() + 1 < ranks()) {
      Communicator group = comm.group(members);
      expect_members(group, comm, members);
      if (group.global_rank() == 0) comm.send(ConstView(nullptr, 0, DType::u8), ranks() - 1);
    } else {  // it has called nothing when the group is done
      comm.recv(View(nullptr, 0, DType::u8), 0);
    }
    comm.barrier();
  });
}

TEST_F(Group, TheSameMembersAgainAndGroupsOfGroups) {
  on_ranks([](Communicator& comm) {
    std::vector<int> all(static_cast<std::size_t>(ranks()));
    std::iota(all.rbegin(), all.rend(), 0);
    std::vector<Communicator> groups;
    for (int i = 0; i < 4; ++i) groups.push_back(comm.group(all));
    for (Communicator& group : groups) expect_members(group, comm, all);
    Communicator inner = groups[2].group(all);  // reversed twice
    EXPECT_EQ(inner.global_rank(), comm.global_rank());
    std::optional<Communicator> split = groups[1].split(0, comm.global_rank());
    EXPECT_EQ(split->global_rank(), comm.global_rank());
    Communicator of_split = split->group(all);
    expect_members(of_split, comm, all);
  });
}

TEST_F(Group, OverlappingOnesWithoutACircleAwaitEachOther) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks([](Communicator& comm) {
    // A chain: each makes the one with its left neighbour first, but for rank 0, which has none.
    const int rank = comm.global_rank();
    std::vector<Communicator> groups;
    for (const int left : {rank - 1, rank}) {
      if (left < 0 || left + 1 >= ranks()) continue;
      const std::vector<int> pair{left + 1, left};
      groups.push_back(comm.group(pair));
      expect_members(groups.back(), comm, pair);
    }
    comm.barrier();
  });
}

TEST_F(Group, MessagesUnderWayStayApart) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    std::vector<int> all(static_cast<std::size_t>(ranks()));
    std::iota(all.begin(), all.end(), 0);
    const std::int64_t sent = 5;
    std::int64_t got = 0;
    const Stream stream = Stream::worker();
    Event event;
    if (comm.global_rank() == 0) {
      event = comm.send(ConstView(&sent, 1, DType::i64), 1, 3, stream);
    } else if (comm.global_rank() == 1) {
      event = comm.recv(View(&got, 1, DType::i64), kAnySource, kAnyTag, stream);
    }
    Communicator group = comm.group(all);
    event.wait();
    expect_members(group, comm, all);
    EXPECT_EQ(got, comm.global_rank() == 1 ? sent : 0);
  });
}

TEST_F(Group, BadRanksAreRefusedAndNothingHappens) {
  on_ranks([](Communicator& comm) {
    const int self = comm.global_rank();
    const auto refused = [&](const std::vector<int>& ranks) {
      return text_of<InvalidArgument>([&] { comm.group(ranks); });
    };
    EXPECT_NE(refused({}).find("ranks is empty"), std::string::npos);
    EXPECT_NE(refused({self, ranks()}).find("ranks[1] is " + std::to_string(ranks())),
              std::string::npos);
    EXPECT_NE(refused({-1, self}).find("ranks[0] is -1"), std::string::npos);
    EXPECT_NE(refused({self, self}).find("ranks[1] is " + std::to_string(self)), std::string::npos);
    if (ranks() > 1) {
      const std::string text = refused({(self + 1) % ranks()});
      EXPECT_NE(text.find("this is rank " + std::to_string(self)), std::string::npos) << text;
    }
    Communicator alone = comm.group(std::vector<int>{self});
    expect_members(alone, comm, {self});
    comm.barrier();
  });
}

// --- Disagreement -------------------------------------------------------------------------------

TEST_F(Group, OtherListsAreShownToAllAtOnce) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    std::vector<int> all(static_cast<std::size_t>(ranks()));
    std::iota(all.begin(), all.end(), 0);
    std::vector<int> mine = all;
    if (comm.global_rank() == 1) std::reverse(mine.begin(), mine.end());
    const std::string text = text_of<MismatchError>([&] { comm.group(mine); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("[0, 1"), std::string::npos) << text;
    EXPECT_NE(text.find("1, 0]"), std::string::npos) << text;
    EXPECT_THROW(comm.barrier(), CommunicationError);
  });
}

TEST_F(Group, AListWithoutSomeIsShownAtOnce) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks([](Communicator& comm) {
    const std::vector<int> mine =
        comm.global_rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    if (comm.global_rank() > 2) {
      EXPECT_THROW(comm.barrier(), MismatchError);
      return;
    }
    const std::string text = text_of<MismatchError>([&] { comm.group(mine); });
    EXPECT_NE(text.find("[0, 1]"), std::string::npos) << text;
    EXPECT_NE(text.find("[0, 1, 2]"), std::string::npos) << text;
  });
}

constexpr auto kDeadline = 1s;

TEST_F(Group, WhoDoesNotComeIsNamedAtTheDeadline) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(
      [](Communicator& comm) {
        const int last = ranks() - 1;
        if (comm.global_rank() == last) {
          std::this_thread::sleep_for(kDeadline * 5 / 2);
          EXPECT_THROW(comm.barrier(), PeerLost);
          return;
        }
        std::vector<int> all(static_cast<std::size_t>(ranks()));
        std::iota(all.begin(), all.end(), 0);
        try {
          comm.group(all);
          ADD_FAILURE() << "did not throw";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{last}) << error.what();
        }
      },
      short_timeout(kDeadline));
}

TEST_F(Group, ACircleEndsAtTheDeadline) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks(
      [](Communicator& comm) {
        const int rank = comm.global_rank();
        if (rank > 2) {
          EXPECT_THROW(comm.barrier(), PeerLost);
          return;
        }
        const std::string text = text_of<PeerLost>([&] {
          const Communicator first = comm.group(std::vector<int>{rank, (rank + 1) % 3});
          const Communicator second = comm.group(std::vector<int>{(rank + 2) % 3, rank});
        });
        EXPECT_NE(text.find("they wait for each other"), std::string::npos) << text;
      },
      short_timeout(kDeadline));
}

}  // namespace
}  // namespace tutti::test
