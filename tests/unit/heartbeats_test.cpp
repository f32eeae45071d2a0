// Heartbeats: what the end of a host's connection says of its ranks.
#include "comm/failures/heartbeats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/failures/control_message.hpp"
#include "unit/hand.hpp"

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
  EXPECT_FALSE(heartbeats.look(has_left));             // one of them may have told what it knows
  EXPECT_EQ(heartbeats.ended(), std::vector<int>{2});  // of whose end this rank knows already
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto found = heartbeats.look(has_left);
  if (!found) return {};
  const auto ranks = found->failure.rank_list();
  std::vector<int> lost(ranks.begin(), ranks.end());
  EXPECT_EQ(heartbeats.ended(), lost);
  return lost;
}

/** Its other end does not answer. */
struct SilentConnection final : public HostConnection {
  News receive() override { return {News::State::timed_out, false, std::nullopt}; }
  void say_goodbye() noexcept override {}
  void tell(const FailureReport& /*failure*/) noexcept override {}
  bool all_have_ended() const override { return false; }
};

/** The same, but whoever asks first is told of it, as by a socket. */
struct OnceSilentConnection final : public HostConnection {
  explicit OnceSilentConnection(const bool& its_host_was_asked) : asked(its_host_was_asked) {}
  News receive() override {
    return {asked ? News::State::ended : News::State::timed_out, false, std::nullopt};
  }
  void say_goodbye() noexcept override {}
  void tell(const FailureReport& /*failure*/) noexcept override {}
  bool all_have_ended() const override { return false; }
  const bool& asked;
};

/** Its other end acknowledges a byte when it is told to. */
struct SlowLine final : public HostLine {
  explicit SlowLine(bool& its_answer, std::chrono::milliseconds its_silence = {})
      : answer(its_answer), heard_before(its_silence) {}
  bool ping() noexcept override {
    answer = false;
    return true;
  }
  bool has_answered() const override { return answer; }
  std::chrono::milliseconds silence() const override { return heard_before; }
  bool has_ended() const override { return false; }
  bool& answer;
  std::chrono::milliseconds heard_before;
};

/** Whether a host that has acknowledged one byte after `first`, and then none, counts as one that
 * cannot be reached `later`. */
bool is_unreachable(std::chrono::milliseconds first, std::chrono::milliseconds later) {
  constexpr std::array hosts{0, 1};
  const test::Hand time;
  bool answer = false;
  std::vector<Heartbeats::Line> lines;
  lines.push_back({1, std::make_unique<SlowLine>(answer)});
  Heartbeats heartbeats(Layout(hosts), 0, {}, std::move(lines), time);
  heartbeats.ping();
  time.sleep(first);
  answer = true;
  heartbeats.ping();  // which sees that the first was answered
  time.sleep(later);
  EXPECT_FALSE(heartbeats.look([](int) { return false; }));
  return heartbeats.unreachable() == std::vector<int>{1};
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

/** Signs of life that host 0 of `hosts` sends in a minute, over one connection to each. */
std::int64_t signs_in_a_minute(int hosts) {
  std::int64_t signs = 0;
  for (const int other : connected_hosts(0, hosts)) {
    signs += 60 / sign_of_life_after(0, other, hosts).count();
  }
  return signs;
}

TEST(Heartbeats, AHostSendsAsManySignsOfLifeWithAnyNumberOfHosts) {
  EXPECT_EQ(signs_in_a_minute(17), 16 * 60);
  for (const int hosts : {18, 100, 1024, 4096, 1 << 20}) {
    EXPECT_LE(signs_in_a_minute(hosts), 3 * 60) << hosts;
    EXPECT_EQ(sign_of_life_after(0, 1, hosts), std::chrono::seconds(1));
    EXPECT_EQ(sign_of_life_after(0, hosts - 1, hosts), std::chrono::seconds(1));
    EXPECT_EQ(sign_of_life_after(0, 4, hosts), sign_of_life_after(4, 0, hosts));
  }
}

/** A rank each on more hosts than have connections to all others. */
Layout of_many_hosts() {
  std::vector<int> hosts(20);
  std::iota(hosts.begin(), hosts.end(), 0);
  return Layout(hosts);
}

TEST(Heartbeats, AmongManyHostsThoseFarAwayAreAskedOnceANeighbourIsSilent) {
  const test::Hand time;
  std::vector<Heartbeats::Connection> connections;
  connections.push_back({1, std::make_unique<SilentConnection>()});
  std::vector<Heartbeats::Line> lines;
  constexpr std::chrono::seconds kLong{8};  // a neighbour would be lost, but not who is far away
  std::array<bool, 4> answers{};
  for (const int host : {1, 2, 4, 8}) {
    bool& answer = answers.at(lines.size());
    lines.push_back({host, std::make_unique<SlowLine>(answer, kLong)});
  }
  Heartbeats heartbeats(of_many_hosts(), 0, std::move(connections), std::move(lines), time);
  const auto nobody = [](int) { return false; };
  EXPECT_FALSE(heartbeats.look(nobody));
  answers[1] = true;  // of host 2, after it was asked
  time.sleep(std::chrono::milliseconds(1199));
  EXPECT_FALSE(heartbeats.look(nobody));
  time.sleep(std::chrono::milliseconds(1));
  const auto found = heartbeats.look(nobody);
  ASSERT_TRUE(found);
  const auto ranks = found->failure.rank_list();
  EXPECT_EQ(std::vector<int>(ranks.begin(), ranks.end()), (std::vector<int>{1, 4, 8}));
}

/** Notes that it was pinged. */
struct AskedLine final : public HostLine {
  explicit AskedLine(bool& was_it) : asked(was_it) {}
  bool ping() noexcept override { return asked = true; }
  bool has_answered() const override { return false; }
  std::chrono::milliseconds silence() const override { return {}; }
  bool has_ended() const override { return false; }
  bool& asked;
};

TEST(Heartbeats, NobodyIsAskedBeforeItIsSeenWhoIsSilent) {
  const test::Hand time;
  bool asked = false;
  std::vector<Heartbeats::Connection> connections;
  std::vector<Heartbeats::Line> lines;
  for (const int host : {1, 19}) {
    connections.push_back({host, std::make_unique<OnceSilentConnection>(asked)});
    lines.push_back({host, std::make_unique<AskedLine>(asked)});
  }
  Heartbeats heartbeats(of_many_hosts(), 0, std::move(connections), std::move(lines), time);
  EXPECT_FALSE(heartbeats.look([](int) { return false; }));
  EXPECT_TRUE(asked);
  EXPECT_TRUE(heartbeats.ended().empty());
}

TEST(Heartbeats, WhoEndsWhileOthersAreAskedIsToldAlone) {
  const test::Hand time;
  bool asked = false;
  std::vector<Heartbeats::Connection> connections;
  connections.push_back({1, std::make_unique<SilentConnection>()});
  connections.push_back({2, std::make_unique<EndedConnection>()});
  std::vector<Heartbeats::Line> lines;
  for (const int host : {1, 2}) lines.push_back({host, std::make_unique<AskedLine>(asked)});
  Heartbeats heartbeats(of_many_hosts(), 0, std::move(connections), std::move(lines), time);
  const auto found = heartbeats.look([](int) { return false; });
  ASSERT_TRUE(found);
  const auto ranks = found->failure.rank_list();
  EXPECT_EQ(std::vector<int>(ranks.begin(), ranks.end()), std::vector<int>{2});
  EXPECT_EQ(found->failure.ended, Ended::yes);
}

TEST(Heartbeats, AHostBehindASlowWireHasLongerToAnswer) {
  using std::chrono::milliseconds;
  EXPECT_TRUE(is_unreachable(milliseconds(1), milliseconds(500)));
  EXPECT_FALSE(is_unreachable(milliseconds(1), milliseconds(200)));
  EXPECT_FALSE(is_unreachable(milliseconds(400), milliseconds(500)));
  EXPECT_TRUE(is_unreachable(milliseconds(400), milliseconds(900)));
  EXPECT_TRUE(is_unreachable(std::chrono::hours(1), milliseconds(1200)));  // nobody looked before
}

TEST(Heartbeats, AHostThatHasEndedIsLostAsAWhole) {
  EXPECT_EQ(lost_after({}), (std::vector<int>{2, 3, 4}));
}

TEST(Heartbeats, AnEndAndASilenceThatAreSeenAtOnceAreBothTold) {
  constexpr std::array hosts{0, 1, 2, 2};
  bool answer = false;
  std::vector<Heartbeats::Connection> connections;
  connections.push_back({1, std::make_unique<EndedConnection>()});
  connections.push_back({2, std::make_unique<SilentConnection>()});
  std::vector<Heartbeats::Line> lines;
  for (const int host : {1, 2}) lines.push_back({host, std::make_unique<SlowLine>(answer)});
  Heartbeats heartbeats(Layout(hosts), 0, std::move(connections), std::move(lines));
  const auto found = heartbeats.look([](int) { return false; });
  ASSERT_TRUE(found);
  const auto ranks = found->failure.rank_list();
  EXPECT_EQ(std::vector<int>(ranks.begin(), ranks.end()), (std::vector<int>{2, 3, 1}));
  EXPECT_EQ(found->failure.text_value(),
            "no answer from the host of ranks 2, 3, and the process of rank 1 has ended");
}

TEST(Heartbeats, WhoHadLeftIsNotLostWithItsHost) {
  EXPECT_EQ(lost_after(std::array{3, 1}), (std::vector<int>{2, 4}));
}

}  // namespace
}  // namespace tutti
