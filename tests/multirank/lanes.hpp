// What tests of lanes have in common.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/hosts/transport.hpp"
#include "comm/layout.hpp"
#include "support/world.hpp"

namespace tutti::test {

class LanesTest : public RankTest {
 protected:
  /** In lanes and by the leaders, which are tried in turns at first. */
  static constexpr int kWays = 2;

  static int hosts() { return Layout(world().hosts).host_count(); }
  static bool are_even() { return Layout(world().hosts).is_even(); }
  /** From so many bytes on each rank can exchange a share. */
  static std::int64_t fewest() { return HierarchicalTransport::fewest_in_lanes(hosts(), ranks()); }

  /** What this rank sends to other hosts for a sum of `bytes` bytes. */
  static std::int64_t sent_for(Communicator& comm, std::int64_t bytes) {
    std::vector<float> data(static_cast<std::size_t>(bytes / 4), 1);
    comm.barrier();
    const std::int64_t before = comm.bytes_between();
    comm.all_reduce(std::span(data));
    EXPECT_EQ(data, std::vector<float>(data.size(), static_cast<float>(comm.world_size())));
    return comm.bytes_between() - before;
  }
};

}  // namespace tutti::test
