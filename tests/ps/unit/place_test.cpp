// Which server has the row of an id.
#include "ps/table/place.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace tutti::ps {
namespace {

constexpr std::int64_t kIds = 30'000;

TEST(IdPlace, ServersHaveAboutEquallyMany) {
  for (const int servers : {1, 2, 3, 8, 100}) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(servers));
    for (std::int64_t id = 0; id < kIds; ++id) {
      const int server = place_of(id * 64, Split::hash, servers).server;
      ASSERT_GE(server, 0);
      ASSERT_LT(server, servers);
      ++counts[static_cast<std::size_t>(server)];
    }
    for (const std::int64_t count : counts)
      EXPECT_NEAR(static_cast<double>(count) * servers, kIds, kIds / 3.0) << servers;
  }
}

TEST(IdPlace, RowsAreSpreadInsideAServer) {
  for (const Split split : {Split::hash, Split::mod}) {
    for (const int servers : {1, 2, 3, 8}) {
      std::array<std::int64_t, 16> counts{};
      std::int64_t mine = 0;
      for (std::int64_t id = 0; id < kIds; ++id) {
        const IdPlace place = place_of(id * servers, split, servers);
        if (place.server != 0) continue;
        ++mine;
        ++counts.at(place.within >> 60U);
      }
      for (const std::int64_t count : counts) {
        EXPECT_NEAR(static_cast<double>(count) * 16, static_cast<double>(mine),
                    static_cast<double>(mine) / 3)
            << servers;
      };
    }
  }
}

TEST(IdPlace, ServersHoldIntervalsOfHashes) {
  // What lies in an earlier interval of two servers lies in no later one of four.
  for (std::int64_t id = -1000; id < 1000; ++id) {
    const int of_two = place_of(id, Split::hash, 2).server;
    EXPECT_EQ(place_of(id, Split::hash, 4).server / 2, of_two);
  }
}

TEST(IdPlace, ModCountsAsPaddleDoesAndTakesAnyId) {
  EXPECT_EQ(place_of(7, Split::mod, 3).server, 1);
  EXPECT_EQ(place_of(-1, Split::mod, 3).server, 2);
  EXPECT_EQ(place_of(std::numeric_limits<std::int64_t>::min(), Split::mod, 2).server, 0);
}

}  // namespace
}  // namespace tutti::ps
