// split: colors, keys, nesting, and collectives in parent and children in turn.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Split : public RankTest {};

std::int64_t sum_of(Communicator& comm, std::int64_t mine, std::size_t count = 1) {
  std::vector<std::int64_t> values(count, mine);
  comm.all_reduce(View(std::span(values)));
  for (const std::int64_t value : values) EXPECT_EQ(value, values.front());
  return values.front();
}

/** The global ranks of the parent, in the order of the child's ranks. */
std::vector<std::int32_t> members_of(Communicator& child, const Communicator& parent) {
  const std::int32_t mine = parent.global_rank();
  std::vector<std::int32_t> members(static_cast<std::size_t>(child.world_size()));
  child.all_gather(ConstView(&mine, 1, DType::i32), View(std::span(members)));
  return members;
}

TEST_F(Split, GroupsByColor) {
  on_ranks([](Communicator& comm) {
    const int color = comm.global_rank() % 2;
    std::optional<Communicator> child = comm.split(color, 0);
    ASSERT_TRUE(child);
    std::vector<std::int32_t> expected;
    for (int rank = color; rank < ranks(); rank += 2) expected.push_back(rank);
    EXPECT_EQ(members_of(*child, comm), expected);
    EXPECT_EQ(child->global_rank(), comm.global_rank() / 2);
    for (const std::size_t count : {1U, 5000U, 200'000U}) {
      std::int64_t sum = 0;
      for (const std::int32_t rank : expected) sum += 10 + rank;
      EXPECT_EQ(sum_of(*child, 10 + comm.global_rank(), count), sum);
    }
  });
}

TEST_F(Split, OrdersByKeyThenByRank) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> reversed = comm.split(7, -comm.global_rank());
    ASSERT_TRUE(reversed);
    EXPECT_EQ(reversed->global_rank(), ranks() - 1 - comm.global_rank());
    std::vector<std::int32_t> expected;
    for (int rank = ranks() - 1; rank >= 0; --rank) expected.push_back(rank);
    EXPECT_EQ(members_of(*reversed, comm), expected);

    std::optional<Communicator> same = comm.split(7, 5);
    ASSERT_TRUE(same);
    EXPECT_EQ(same->global_rank(), comm.global_rank());
  });
}

TEST_F(Split, ANegativeColorGetsNothing) {
  on_ranks([](Communicator& comm) {
    const bool in = comm.global_rank() != 0;
    std::optional<Communicator> child = comm.split(in ? 3 : -1, 0);
    EXPECT_EQ(child.has_value(), in);
    if (child) {
      EXPECT_EQ(child->world_size(), ranks() - 1);
      EXPECT_EQ(sum_of(*child, 1), ranks() - 1);
    }
    EXPECT_EQ(sum_of(comm, 1), ranks());
    EXPECT_FALSE(comm.split(-5, 0));  // nobody
    EXPECT_EQ(sum_of(comm, 1), ranks());
  });
}

TEST_F(Split, LocalRanksFollowTheHosts) {
  on_ranks([](Communicator& comm) {
    const std::vector<int>& hosts = world().hosts;
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    std::optional<Communicator> host = comm.split(hosts[rank], 0);
    ASSERT_TRUE(host);
    EXPECT_EQ(host->world_size(), comm.local_size());
    EXPECT_EQ(host->local_size(), comm.local_size());
    EXPECT_EQ(host->global_rank(), comm.local_rank());
    EXPECT_EQ(host->local_rank(), comm.local_rank());
    std::optional<Communicator> leaders = comm.split(comm.local_rank(), 0);
    ASSERT_TRUE(leaders);
    EXPECT_EQ(leaders->local_size(), 1);
    EXPECT_EQ(sum_of(*leaders, 1, 100'000), leaders->world_size());
    EXPECT_EQ(sum_of(*host, 1, 100'000), host->world_size());
  });
}

TEST_F(Split, ParentAndChildrenTakeTurns) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> child = comm.split(comm.global_rank() / 2, 0);
    std::optional<Communicator> grandchild = child->split(0, -child->global_rank());
    ASSERT_TRUE(grandchild);
    EXPECT_EQ(grandchild->global_rank(), child->world_size() - 1 - child->global_rank());
    for (int round = 0; round < 20; ++round) {
      const std::size_t count = round % 5 == 0 ? 150'000 : 10;
      ASSERT_EQ(sum_of(*child, 1, count), child->world_size());
      ASSERT_EQ(sum_of(comm, 1, count), ranks());
      ASSERT_EQ(sum_of(*grandchild, 2, count), 2 * child->world_size());
    }
  });
}

TEST_F(Split, ChildrenOutliveTheirParent) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> child;
    {
      std::optional<Communicator> parent = comm.split(0, 0);
      child = parent->split(0, 0);
    }
    EXPECT_EQ(sum_of(*child, 1, 100'000), ranks());
  });
}

TEST_F(Split, ChildrenHaveSymmetricMemoryOfTheirOwn) {
  on_ranks([](Communicator& comm) {
    std::optional<Communicator> child = comm.split(comm.global_rank() % 2, 0);
    ASSERT_TRUE(child);
    Arena arena(*child, 1 << 20);
    Arena parents(comm, 1 << 20);
    for (Arena* memory : {&arena, &parents}) {  // the parent's memory is only memory to the child
      for (const std::int64_t count : {10, 100'000}) {
        const View in = memory->input(Memory::symmetric, count, DType::f32);
        const View out = memory->output(Memory::symmetric, count, DType::f32);
        fill(in, [&](std::int64_t) { return comm.global_rank() + 1; });
        double sum = 0;
        for (int rank = comm.global_rank() % 2; rank < ranks(); rank += 2) sum += rank + 1;
        child->all_reduce(in, out);
        EXPECT_TRUE(holds(out, [&](std::int64_t) { return sum; }));
        comm.barrier();
      }
    }
  });
}

TEST_F(Split, ManyInARow) {
  on_ranks([](Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      std::optional<Communicator> child = comm.split((comm.global_rank() + round) % 2, 0);
      ASSERT_TRUE(child);
      ASSERT_EQ(sum_of(*child, 1), child->world_size());
    }
  });
}

}  // namespace
}  // namespace tutti::test
