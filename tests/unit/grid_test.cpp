// Grids: every place of every group has one holder, and all hosts have as much to do.
#include "comm/hosts/group/grid.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tutti {
namespace {

TEST(Grid, HasGroupsOneAfterTheOtherThatDifferByOneHostAtMost) {
  for (int hosts = 1; hosts <= 4096; ++hosts) {
    const Grid grid(hosts);
    ASSERT_EQ(grid.begin(0), 0);
    ASSERT_EQ(grid.begin(grid.groups()), hosts);
    for (int group = 0; group < grid.groups(); ++group) {
      const int size = grid.size_of(group);
      ASSERT_TRUE(size == grid.places() || size == grid.places() + 1) << hosts << " hosts";
      ASSERT_LE(size, grid.largest_group());
      ASSERT_EQ(grid.group_of(grid.begin(group)), group) << hosts << " hosts";
      ASSERT_EQ(grid.group_of(grid.begin(group + 1) - 1), group) << hosts << " hosts";
    }
  }
}

TEST(Grid, HasAboutFourTimesAsManyHostsInAGroupAsGroups) {
  const auto shape_of = [](int hosts) {
    const Grid grid(hosts);
    return std::to_string(grid.groups()) + "x" + std::to_string(grid.places());
  };
  EXPECT_EQ(shape_of(33), "2x16");
  EXPECT_EQ(shape_of(37), "3x12");
  EXPECT_EQ(shape_of(64), "4x16");
  EXPECT_EQ(shape_of(257), "8x32");
  EXPECT_EQ(shape_of(1024), "16x64");
  EXPECT_EQ(shape_of(4096), "32x128");
}

TEST(Grid, GivesEachPlaceOneHolder) {
  for (const int hosts : {33, 36, 37, 41, 64, 97, 1000, 1024}) {
    const Grid grid(hosts);
    for (std::int64_t window = 0; window < 2 * grid.largest_group() + 1; ++window) {
      for (int group = 0; group < grid.groups(); ++group) {
        int without = 0;
        for (int host = grid.begin(group); host < grid.begin(group + 1); ++host) {
          const int place = grid.place_of(host, window);
          if (place == Grid::kNone) {
            ++without;
          } else {
            ASSERT_EQ(grid.holder(group, place, window), host)
                << hosts << " hosts, window " << window;
          }
        }
        ASSERT_EQ(without, grid.size_of(group) - grid.places());
      }
    }
  }
}

TEST(Grid, LetsHostsWithoutAPlaceTakeTurns) {
  const Grid grid(37);
  const int group = grid.groups() - 1;
  ASSERT_EQ(grid.size_of(group), 13);
  std::vector<int> windows(13);  // for which each has a place
  for (std::int64_t window = 0; window < 13; ++window) {
    for (int place = 0; place < grid.places(); ++place) {
      ++windows[static_cast<std::size_t>(grid.holder(group, place, window) - grid.begin(group))];
    }
  }
  EXPECT_EQ(windows, std::vector<int>(13, 12));
}

}  // namespace
}  // namespace tutti
