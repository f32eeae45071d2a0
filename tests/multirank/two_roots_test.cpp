// Two roots of broadcasts that go one way, and that hosts pass on to each other.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "support/world.hpp"

namespace tutti::test {
namespace {

class TwoRoots : public RankTest {};

/** Of four hosts 0 and 3 follow rank 0, 1 and 2 rank 1, whose data are longer: so a host may get a
 * longer part of them from another that follows than it waits for, before the root's own note. */
TEST_F(TwoRoots, AreAMismatchOnEveryRank) {
  if (ranks() != 4) GTEST_SKIP() << "needs four hosts of one rank";
  on_ranks([](Communicator& comm) {
    constexpr std::array<int, 4> kRoots{0, 1, 1, 0};
    constexpr std::array<std::int64_t, 2> kCounts{48 << 10, 64 << 10};
    const int root = kRoots[static_cast<std::size_t>(comm.global_rank())];
    std::vector<std::uint8_t> data(static_cast<std::size_t>(kCounts.back()));
    for (int time = 0; time < 20; ++time) {
      std::optional<Communicator> child = comm.split(0, comm.global_rank());
      try {
        child->barrier();  // who comes late to the end of it may hear of the mismatch there
        child->broadcast(View(data.data(), kCounts[static_cast<std::size_t>(root)], DType::u8),
                         root);
        child->barrier();  // a root may not have heard by then
        ADD_FAILURE() << "nobody threw";
      } catch (const MismatchError&) {
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
