// The judge of trials refuses what it is there for; and a trial takes the same course again.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "simulation/judge.hpp"
#include "simulation/steps.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {
namespace {

using simulation::Cluster;
using simulation::Process;
using simulation::Scheduler;
using simulation::SimulatedWire;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kVictim = 3;
constexpr milliseconds kTimeout{1000};
constexpr milliseconds kStruck{5};

Step all_reduce_of(Reduce reduce) {
  return {StepKind::all_reduce, DType::f32, reduce, 100, 0, kNobody, 0, microseconds(0)};
}

/** Two hosts of two ranks, the last of which is killed while the others wait for it. */
Plan plan_with_a_killed_rank() {
  return {.hosts = 2,
          .ranks = 2,
          .model = {},
          .timeout = kTimeout,
          .steps = {all_reduce_of(Reduce::sum)},
          .fault = {.kind = FaultKind::killed, .rank = kVictim, .at = kStruck}};
}

/** All that the judge says of endings, and of whom ranks send nothing more, that `change` has made
 * out of right ones. */
std::string verdict(const std::function<void(Course&, Cluster&)>& change) {
  const Plan plan = plan_with_a_killed_rank();
  Cluster cluster(plan.hosts, plan.ranks, plan.model, 1);
  cluster.start([](Process& process) { process.compute(kStruck); });
  cluster.kill(kVictim);
  cluster.scheduler().run(cluster.scheduler().now() + kStruck);
  const Scheduler::Time begun{};
  Course course{std::vector<Ending>(4), begun, begun + kStruck};
  for (int rank = 0; rank < kVictim; ++rank) {
    Ending& ending = course.of(rank);
    ending.ended = true;
    ending.lost = {kVictim};
    ending.text = "its process has ended";
    ending.at = begun + milliseconds(20);
    cluster.process(rank).note_ended(kVictim);
  }
  change(course, cluster);
  std::string said;
  for (const std::string& one : judge(plan, cluster, course).complaints) said += one + "\n";
  return said;
}
std::string verdict(const std::function<void(Course&)>& change) {
  return verdict([&](Course& course, Cluster& /*cluster*/) { change(course); });
}

TEST(Judge, AcceptsThatAllNameWhoWasKilled) {
  EXPECT_EQ(verdict([](Course&) {}), "");
}

TEST(Judge, RefusesAWrongCulprit) {
  const std::string said = verdict([](Course& course) {
    for (int rank = 0; rank < kVictim; ++rank) course.of(rank).lost = {rank == 1 ? 0 : 1};
  });
  for (const char* one : {"rank 0 names rank 1, but lost rank 3", "rank 1 names rank 0, but lost",
                          "rank 2 names rank 1, but lost rank 3"}) {
    EXPECT_NE(said.find(one), std::string::npos) << said;
  }
}

TEST(Judge, RefusesACulpritBesideTheRightOne) {
  const std::string said = verdict([](Course& course) {
    for (int rank = 0; rank < kVictim; ++rank) course.of(rank).lost = {2, kVictim};
  });
  EXPECT_NE(said.find("rank 0 names ranks 2, 3, but lost rank 3"), std::string::npos) << said;
}

TEST(Judge, RefusesThatARankHangs) {
  EXPECT_EQ(verdict([](Course& course) { course.of(2) = {}; }), "rank 2 hangs\n");
}

TEST(Judge, RefusesThatNothingIsSentToWhoLives) {
  EXPECT_EQ(verdict([](Course& /*course*/, Cluster& cluster) { cluster.process(0).note_ended(1); }),
            "rank 0 sends nothing to rank 1, whose process lives\n");
}

TEST(Judge, RefusesThatWhoSaysOfAnEndMaySendSomethingThere) {
  const std::string said = verdict([](Course& course) { course.of(0).lost = {1}; });
  EXPECT_NE(said.find("rank 0 may send something to rank 1, whose process has ended"),
            std::string::npos)
      << said;
}

TEST(Judge, RefusesWhoNamesNobody) {
  const std::string said = verdict([](Course& course) { course.of(2).lost = {}; });
  EXPECT_NE(said.find("rank 2 names "), std::string::npos) << said;
}

TEST(Judge, RefusesTwoStories) {
  const std::string told = verdict([](Course& course) { course.of(2).lost = {1, kVictim}; });
  EXPECT_NE(told.find("there is more than one story"), std::string::npos) << told;
}

TEST(Judge, RefusesThatARankKnowsTooLate) {
  const auto too_late = kTimeout + milliseconds(1001) + kStruck;
  EXPECT_EQ(verdict([&](Course& course) { course.of(0).at = course.begun + too_late; }),
            "rank 0 knew of it 2001000 us later, not within 2000000\n");
}

TEST(Judge, RefusesALossBeforeAnythingHasHappened) {
  const std::string said = verdict([](Course& course) { course.struck.reset(); });
  EXPECT_NE(said.find("rank 0 lost somebody before anything had happened"), std::string::npos)
      << said;
}

TEST(Judge, RefusesAMismatchThatNobodyHasMadeAndAWrongResult) {
  for (const auto& [error, text] : {std::pair{&Ending::mismatch, "the members do not agree"},
                                    {&Ending::other_error, "wrong result of all_reduce"}}) {
    const std::string said = verdict([error = error, text = text](Course& course) {
      course.of(1).*error = true;
      course.of(1).text = text;
    });
    EXPECT_EQ(said, std::string("rank 1: ") + text + "\n");
  }
}

/** Of two hosts of two ranks, of which rank 0 has made another call than the others, and gone; rank
 * 3 has found that, and was stopped before it told: what the judge says if rank 2 `hears` of it, or
 * has completed its calls, and rank 1 names rank 3 after `later`. */
std::string verdict_on_a_stopped_finder(bool hears, milliseconds later) {
  Plan plan = plan_with_a_killed_rank();
  plan.fault = {.kind = FaultKind::mistaken, .rank = 0, .stops_finder = true};
  const Cluster cluster(plan.hosts, plan.ranks, plan.model, 1);
  const Scheduler::Time begun{};
  Course course{std::vector<Ending>(4), begun, begun + kStruck};
  for (Ending& ending : course.endings) {
    ending.ended = true;
    ending.at = begun + kStruck;
  }
  course.stopped.insert(3);
  course.of(0).completed = true;
  course.of(1).lost = {3};
  course.of(1).at += later;
  course.of(2).completed = !hears;
  course.of(2).mismatch = hears;
  course.of(3).mismatch = true;
  std::string said;
  for (const std::string& one : judge(plan, cluster, course).complaints) said += one + "\n";
  return said;
}

TEST(Judge, AcceptsThatWhoAloneKnowsOfAMismatchAndIsStoppedIsNamed) {
  EXPECT_EQ(verdict_on_a_stopped_finder(false, kTimeout + milliseconds(999)), "");
  EXPECT_NE(verdict_on_a_stopped_finder(false, kTimeout + milliseconds(1001)), "");
  EXPECT_NE(verdict_on_a_stopped_finder(true, kTimeout + milliseconds(999)), "");
}

/** What the other rank adds is not what it should. */
TEST(Steps, SeeThatASumIsWrong) {
  Cluster cluster(2, 1, {}, 1);
  const Step step = all_reduce_of(Reduce::sum);
  std::string text;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kTimeout);
    wire.connect();
    Team all(wire, {0, 1}, true);
    Notes notes(wire);
    try {
      if (process.rank() == 0) {
        Caller caller{all, notes};
        run_step(caller, step, 0, Manner::plain);
      } else {
        std::vector<float> wrong(static_cast<std::size_t>(step.count), 0.5F);
        all.all_reduce.run(wrong.data(), step.count, step.dtype, combine_of(step.reduce, 2));
      }
    } catch (const std::logic_error& error) {
      text = error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  EXPECT_EQ(text, "wrong result of all_reduce");
}

/** In lanes, where one rank brings something else: the other one does, and those beside it lose it.
 */
TEST(Steps, SeeThatASumInLanesIsWrong) {
  Cluster cluster(2, 2, {}, 1);
  Step step = all_reduce_of(Reduce::sum);
  step.kind = StepKind::lanes;
  step.count = 1 << 17;
  std::vector<std::string> texts(4);
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kTimeout);
    wire.connect();
    const int rank = wire.rank();
    Team all(wire, {0, 1, 2, 3});
    Team inside(wire, {rank / 2 * 2, rank / 2 * 2 + 1});
    Team lane(wire, {rank % 2, rank % 2 + 2}, false, {rank % 2, 2});
    Notes notes(wire);
    Caller caller{all, notes, &lane, &inside};
    Step own = step;
    if (rank == 3) own.reduce = Reduce::product;
    try {
      run_step(caller, own, 0, Manner::plain);
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  EXPECT_EQ(texts[1], "wrong result of all_reduce in lanes");
  EXPECT_EQ(texts[0], "lost rank 1: it has destroyed its communicator");
}

/** 36 MB to each of 52 hosts, over links of 10 MB/s, one of which is cut. */
TEST(Trial, GivesOthersTimeForWhatMoves) {
  const Plan plan = draw_plan(291166091);
  EXPECT_EQ(plan.fault.kind, FaultKind::cut_off);
  EXPECT_GT(plan.moves_on, 2 * plan.timeout);
  EXPECT_LT(plan.moves_on, std::chrono::seconds(4));
  EXPECT_EQ(run_trial(plan, 291166091).complaints, std::vector<std::string>{});
}

TEST(Trial, TellsTheSeedAndThePlanOfWhatHasFailed) {
  const Plan plan = plan_with_a_killed_rank();
  const Outcome failed{{"one", "two", "three", "four", "five", "six"}, "\n  rank 0 done"};
  const std::string told = "seed 7: " + describe(plan) + "\n  rank 0 done\n";
  EXPECT_EQ(report(plan, 7, failed), told +
                                         "seed 7 FAILED: one\nseed 7 FAILED: two\nseed 7 FAILED: "
                                         "three\nseed 7 FAILED: four\nseed 7 FAILED: five\n");
  EXPECT_EQ(report(plan, 7, {{}, "\n  rank 0 done"}), told);
}

/** The times of all ends are in the story, in microseconds. */
TEST(Trial, TakesTheSameCourseAgainWithTheSameSeed) {
  constexpr std::uint64_t kSeeds = 60;
  int with_losses = 0;
  int moved = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = draw_plan(seed);
    ASSERT_EQ(describe(plan), describe(draw_plan(seed)));
    const Outcome outcome = run_trial(plan, seed);
    const Outcome again = run_trial(plan, seed);
    EXPECT_EQ(outcome.story, again.story);
    EXPECT_EQ(outcome.complaints, again.complaints);
    EXPECT_EQ(outcome.after, again.after);
    if (outcome.after.count() > 0) ++with_losses;
    if (run_trial(plan, seed + kSeeds).story != outcome.story) ++moved;
  }
  EXPECT_GE(with_losses, 10);  // or nothing of the news of losses is repeated here
  EXPECT_GE(moved, 10);        // or the seed draws nothing on the wires
}

}  // namespace
}  // namespace tutti::test::simulated
