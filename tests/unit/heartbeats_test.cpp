// Heartbeats: what the end of a host's connection says of its ranks.
#include "comm/failures/heartbeats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/failures/control_message.hpp"

namespace tutti {
namespace {

/** Its other end has ended, with all of its host. */
class EndedConnection final : public HostConnection {
 public:
  News receive() override { return {News::State::ended, false, std::nullopt}; }
  void say_goodbye() noexcept override {}
  void tell(const FailureReport& /*failure*/) noexcept override {}
  bool all_have_ended() const override { return true; }
};

/** Whom the leader of the first of two hosts takes for lost, a moment after the end of the second,
 * which has ranks 2, 3, and 4. */
std::vector<int> lost_after(std::span<const int> leavers) {
  constexpr std::array hosts{0, 0, 1, 1, 1};
  std::vector<Heartbeats::Connection> connections;
  connections.push_back({1, std::make_unique<EndedConnection>()});
  Heartbeats heartbeats(Layout(hosts), 0, std::move(connections), {});
  const auto has_left = [leavers](int rank) {
    return std::find(leavers.begin(), leavers.end(), rank) != leavers.end();
  };
  EXPECT_FALSE(heartbeats.look(has_left));  // one of them may have told what it knows
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto found = heartbeats.look(has_left);
  if (!found) return {};
  const auto ranks = found->failure.rank_list();
  return {ranks.begin(), ranks.end()};
}

/** In how many steps what one host tells is known to all, if each passes it on. */
int steps_to_all(int hosts) {
  std::vector<int> known{0};
  std::vector<bool> knows(static_cast<std::size_t>(hosts));
  knows[0] = true;
  int steps = 0;
  for (; std::ssize(known) < hosts; ++steps) {
    for (const int host : std::vector(known)) {
      for (const int other : connected_hosts(host, hosts)) {
        if (!knows[static_cast<std::size_t>(other)]) known.push_back(other);
        knows[static_cast<std::size_t>(other)] = true;
      }
    }
  }
  return steps;
}

TEST(Heartbeats, ConnectionsAndStepsGrowWithTheLogarithmOfTheHosts) {
  EXPECT_EQ(connected_hosts(3, 17).size(), 16U);
  EXPECT_EQ(connected_hosts(0, 18), (std::vector<int>{1, 2, 4, 8, 10, 14, 16, 17}));
  EXPECT_EQ(connected_hosts(7, 1024).size(), 19U);
  EXPECT_EQ(connected_hosts(7, 4096).size(), 23U);
  EXPECT_EQ(steps_to_all(17), 1);
  EXPECT_LE(steps_to_all(1024), 10);
  EXPECT_LE(steps_to_all(4095), 12);
}

TEST(Heartbeats, ConnectionsAreSymmetric) {
  for (const int hosts : {2, 17, 18, 63, 64}) {
    for (int host = 0; host < hosts; ++host) {
      for (const int other : connected_hosts(host, hosts)) {
        const std::vector<int> back = connected_hosts(other, hosts);
        EXPECT_TRUE(std::binary_search(back.begin(), back.end(), host)) << host << " " << other;
      }
    }
  }
}

TEST(Heartbeats, AHostThatHasEndedIsLostAsAWhole) {
  EXPECT_EQ(lost_after({}), (std::vector<int>{2, 3, 4}));
}

TEST(Heartbeats, WhoHadLeftIsNotLostWithItsHost) {
  EXPECT_EQ(lost_after(std::array{3, 1}), (std::vector<int>{2, 4}));
}

}  // namespace
}  // namespace tutti
