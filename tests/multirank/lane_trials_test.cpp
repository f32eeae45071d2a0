// Trials of lanes that are timed by a clock of the test's: what all ranks do once they are over.
#include "comm/hosts/lane_trials.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/hosts/connect.hpp"
#include "comm/hosts/transport.hpp"
#include "comm/mpi/session.hpp"
#include "multirank/lanes.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"
#include "tutti/store.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/** Moves on by a step when somebody looks at it: a call takes a step on a leader. */
class SteppingClock {
 public:
  std::chrono::steady_clock::time_point now() { return now_ += step_; }
  void set_step(std::chrono::milliseconds step) { step_ = step; }

 private:
  std::chrono::steady_clock::time_point now_;
  std::chrono::milliseconds step_ = 1ms;
};

class LaneTrialsTest : public LanesTest {
 protected:
  static constexpr std::chrono::seconds kTimeout{20};

  void SetUp() override {
    if (hosts() == 1 || !are_even()) GTEST_SKIP() << "needs hosts of equally many ranks";
  }

  /** Where a rank waits for a core for a second as they connect there are no lanes: they try again.
   */
  static std::unique_ptr<HierarchicalTransport> connect() {
    for (int attempt = 0; attempt < 3; ++attempt) {
      auto connected = connect_session(mpi::Session::world(kTimeout), kTimeout);
      auto& transport = dynamic_cast<HierarchicalTransport&>(*connected);
      if (transport.lane_trials() == nullptr) continue;
      connected.release();  // NOLINT(bugprone-unused-return-value): `transport`
      return std::unique_ptr<HierarchicalTransport>(&transport);
    }
    throw Error("the hosts have no lanes, the third time");
  }

  /** Enough for few trials. */
  static std::int64_t bytes() { return std::max(fewest(), std::int64_t{8} << 20U); }

  /** Whether what this rank brings goes in lanes: others than leaders send nothing otherwise. */
  static bool goes_in_lanes(Communicator& comm, std::vector<float>& data) {
    const std::int64_t before = comm.bytes_between();
    comm.all_reduce(std::span(data), Reduce::max);  // which changes nothing
    return comm.bytes_between() > before;
  }

  /** All ranks make all trials, of which each takes so long on this rank's host. */
  static void try_both(Communicator& comm, std::vector<float>& data, SteppingClock& clock,
                       std::chrono::milliseconds in_lanes, std::chrono::milliseconds by_leaders) {
    LaneTrials lanes(fewest(), comm.local_size());
    Trials& trials = lanes.of(bytes());
    while (!trials.are_over()) {
      const Trials::Trial trial = trials.next();
      const bool expected = trial.way == LaneTrials::kInLanes;
      clock.set_step(expected ? in_lanes : by_leaders);
      const bool found = goes_in_lanes(comm, data);
      EXPECT_TRUE(comm.local_rank() == 0 || found == expected) << "trial " << trial.number;
      trials.learn(trial.number, 0);
    }
  }
};

TEST_F(LaneTrialsTest, KeepLanesIfTheyAreFasterOnAllHosts) {
  struct Case {
    std::vector<bool> lanes_are_faster;  // on the first host, and on the others
    bool go_in_lanes;
  };
  const std::vector<Case> cases{{{true, true}, true},
                                {{false, false}, false},
                                {{true, false}, false},
                                {{false, true}, false}};
  const Layout layout(world().hosts);
  for (const Case& one : cases) {
    on_ranks([&](Communicator&) {
      SteppingClock clock;
      auto connected = connect();
      connected->lane_trials()->time_by([&clock] { return clock.now(); });
      Communicator comm(std::move(connected));
      std::vector<float> data(static_cast<std::size_t>(bytes()) / sizeof(float), 1);
      const bool others = layout.host_of(comm.global_rank()) != 0;
      const bool faster = one.lanes_are_faster[others ? 1 : 0];
      try_both(comm, data, clock, faster ? 1ms : 2ms, faster ? 2ms : 1ms);
      for (int call = 0; call < 4; ++call) {  // more than trials go one way in a row
        const bool found = goes_in_lanes(comm, data);
        EXPECT_TRUE(comm.local_rank() == 0 || found == one.go_in_lanes)
            << "call " << call << ", lanes are " << (faster ? "faster" : "slower") << " here";
      }
    });
  }
}

/** By both ways hosts have told each other no more than what they compare. */
TEST_F(LaneTrialsTest, AreTimedFromBeforeAnyOfTheSumTravels) {
  static constexpr std::int64_t kOfLeaders = 8 << 10;  // what leaders tell each other, at most
  on_ranks([](Communicator&) {
    auto connected = connect();
    HierarchicalTransport& transport = *connected;
    std::vector<std::int64_t> sent;  // whenever somebody has looked at the clock
    transport.lane_trials()->time_by([&] {
      sent.push_back(transport.bytes_between());
      return std::chrono::steady_clock::time_point();
    });
    Communicator comm(std::move(connected));
    std::vector<float> data(static_cast<std::size_t>(bytes()) / sizeof(float));
    for (int way = 0; way < kWays; ++way) {
      sent.clear();
      const std::int64_t before = comm.bytes_between();
      comm.all_reduce(std::span(data));
      if (comm.local_rank() != 0) continue;
      ASSERT_EQ(sent.size(), 2U);
      EXPECT_LE(sent[0] - before, kOfLeaders) << "way " << way;
      EXPECT_GE(sent[1] - before, bytes() / hosts() / comm.local_size()) << "way " << way;
    }
  });
}

constexpr const char* kReason = "had enough";

/** A rank gives up between the last trial and the hosts' telling each other what they have found.
 */
class GivesUp {
 public:
  /** The ranks meet over `outer`, which nobody gives up. */
  GivesUp(Communicator& outer, int culprit)
      : store_(outer),
        layout_(world().hosts),
        rank_(outer.global_rank()),
        culprit_(culprit),
        culprit_leads_(layout_.local_rank_of(culprit) == 0) {}

  bool is_culprit() const { return rank_ == culprit_; }
  /** By each leader, which has all of the sum. */
  void meet() {
    const int own = layout_.host_of(rank_);
    store_.set("leader " + std::to_string(own), {});
    for (int host = 0; host < layout_.host_count(); ++host) {
      store_.get("leader " + std::to_string(host));
    }
    if (is_culprit()) throw Error(kReason);
    if (culprit_leads_ || layout_.host_of(culprit_) != own) return;
    store_.set("the leaders have met", {});
    store_.get("it has given up");
  }
  /** By a thread of the culprit's, of which it needs one if it is no leader. */
  void wait_and_abort(Communicator& comm) {
    if (!is_culprit() || culprit_leads_) return;
    try {
      store_.get("the leaders have met");
      comm.abort(kReason);
      store_.set("it has given up", {});
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  /** What all have called has thrown `error`. */
  void expect(const Error& error) const {
    if (is_culprit()) return;
    const auto* const loss = dynamic_cast<const PeerLost*>(&error);
    ASSERT_NE(loss, nullptr) << error.what();
    EXPECT_EQ(loss->ranks(), std::vector<int>{culprit_}) << error.what();
    EXPECT_NE(loss->reason().find(kReason), std::string::npos) << error.what();
  }
  /** Whether nobody comes to the end of that trial: hosts do not agree without their leaders. */
  bool ends_the_trial() const { return culprit_leads_; }

 private:
  Store store_;
  Layout layout_;
  int rank_;
  int culprit_;
  bool culprit_leads_;
};

TEST_F(LaneTrialsTest, NameWhoIsLostBehindTheLastOne) {
  const Layout layout(world().hosts);
  const std::span<const int> last_host = layout.ranks_of(hosts() - 1);
  for (const int culprit : {0, last_host.front(), last_host.back()}) {
    on_ranks([&](Communicator& outer) {
      GivesUp gives_up(outer, culprit);
      int looks_left = 0;  // at the clock, until the last trial has been timed
      auto connected = connect();
      connected->lane_trials()->time_by([&] {
        if (--looks_left == 0) gives_up.meet();
        return std::chrono::steady_clock::time_point();
      });
      Communicator comm(std::move(connected));
      const std::jthread thread([&] { gives_up.wait_and_abort(comm); });

      LaneTrials lanes(fewest(), comm.local_size());
      Trials& trials = lanes.of(bytes());
      const std::vector<float> in(static_cast<std::size_t>(bytes()) / sizeof(float), 1);
      std::vector<float> out(in.size());
      const auto sum = [&] { comm.all_reduce(std::span(in), std::span(out)); };
      for (trials.learn(trials.next().number, 0); !trials.are_over();
           trials.learn(trials.next().number, 0)) {
        sum();
      }
      std::fill(out.begin(), out.end(), -1.0F);
      looks_left = 2;
      bool has_ended = false;
      try {
        sum();
        has_ended = true;
        comm.barrier();
        ADD_FAILURE() << "rank " << comm.global_rank() << " noticed nothing";
      } catch (const Error& error) {
        gives_up.expect(error);
      }
      EXPECT_FALSE(has_ended && gives_up.ends_the_trial());
      EXPECT_THROW(comm.barrier(), CommunicationError);
      EXPECT_EQ(in, std::vector<float>(in.size(), 1));
      if (comm.local_rank() == 0) {
        EXPECT_LE(looks_left, 0);
        EXPECT_EQ(out, std::vector<float>(out.size(), static_cast<float>(ranks())));
      }
      outer.barrier();
    });
  }
}

}  // namespace
}  // namespace tutti::test
