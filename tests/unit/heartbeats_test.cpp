// Heartbeats: what the end of a host's connection says of its ranks.
#include "comm/failures/heartbeats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/failures/control_message.hpp"

namespace tutti {
namespace {

/** Its other end has ended, with all of its host. */
class EndedConnection final : public HostConnection {
 public:
  News receive() override { return {News::State::ended, false, std::nullopt}; }
  void ping() noexcept override {}
  void say_goodbye() noexcept override {}
  void tell(const FailureReport& /*failure*/) noexcept override {}
  bool all_acknowledged() const override { return true; }
  bool all_have_ended() const override { return true; }
  std::chrono::milliseconds silence() const override { return {}; }
};

/** Whom the leader of the first of two hosts takes for lost; the second has ranks 2, 3, and 4. */
std::vector<int> lost_after(std::span<const int> leavers) {
  constexpr std::array hosts{0, 0, 1, 1, 1};
  std::vector<Heartbeats::Connection> connections;
  connections.push_back({1, std::make_unique<EndedConnection>()});
  Heartbeats heartbeats(Layout(hosts), 0, std::move(connections));
  const auto failure = heartbeats.look([leavers](int rank) {
    return std::find(leavers.begin(), leavers.end(), rank) != leavers.end();
  });
  if (!failure) return {};
  const auto ranks = failure->rank_list();
  return {ranks.begin(), ranks.end()};
}

TEST(Heartbeats, AHostThatHasEndedIsLostAsAWhole) {
  EXPECT_EQ(lost_after({}), (std::vector<int>{2, 3, 4}));
}

TEST(Heartbeats, WhoHadLeftIsNotLostWithItsHost) {
  EXPECT_EQ(lost_after(std::array{3, 1}), (std::vector<int>{2, 4}));
}

}  // namespace
}  // namespace tutti
