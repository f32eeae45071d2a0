// On simulated hosts a rank is found lost in one communicator while others wait in a second one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "comm/batch.hpp"
#include "comm/simulation/wire.hpp"
#include "tutti/error.hpp"

namespace tutti::test::lost_elsewhere_test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::SimulatedWire;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{1000};
constexpr milliseconds kBehind{500};  // rank 1, so that its own deadline passes later

struct Story {
  std::string text;
  milliseconds longest{};  ///< wait of a rank in the second communicator
};

/** One rank on each of three hosts. Rank 2 computes for `computes`; rank 0 waits for it in a part,
 * with kDeadline, and then comes to the whole, where rank 1 has been waiting for both. */
Story story(bool is_cut, milliseconds computes, milliseconds of_whole = kDeadline) {
  Cluster cluster(3, 1, NetworkModel{}, 1);
  if (is_cut) {
    const auto soon = cluster.scheduler().now() + milliseconds(1);
    cluster.scheduler().at(soon, [&] { cluster.cut_off(2); });
  }
  Story story;
  cluster.start([&](Process& process) {
    SimulatedWire part(process, 2, kDeadline);
    SimulatedWire whole(process, 1, of_whole);
    whole.connect();
    const int rank = process.rank();
    std::array<std::byte, 8> data{};
    if (rank == 0) {
      Batch batch(part, Wire::Traffic::collective);
      batch.recv(data.data(), std::ssize(data), 2);
      EXPECT_THROW(batch.wait(), PeerLost);
      // Connections of one communicator alone are simulated: its inquiry would have noted this.
      const ProcessNumber lost = whole.watch().acquaintance().members[2];
      if (is_cut) process.wait_graph().note_cut_off({&lost, 1}, kDeadline);
    }
    if (rank == 1) process.compute(kBehind);
    if (rank == 2) process.compute(computes);
    const auto begin = cluster.scheduler().now();
    std::string text = "done";
    try {
      whole.watch().ask_the_cut_off_again();
      std::array<std::array<std::byte, 8>, 3> come{};
      Batch batch(whole, Wire::Traffic::collective);
      for (int other = 0; other < 3; ++other) {
        if (other == rank) continue;
        batch.send(data.data(), std::ssize(data), other);
        batch.recv(come[static_cast<std::size_t>(other)].data(), std::ssize(data), other);
      }
      batch.wait();
    } catch (const PeerLost& error) {
      text = error.what();
    }
    if (rank != 2) {
      story.text += (story.text.empty() ? "" : "; ") + text;
      const auto took = cluster.scheduler().now() - begin;
      story.longest = std::max(story.longest, std::chrono::duration_cast<milliseconds>(took));
    }
    part.leave();
    whole.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  return story;
}

constexpr milliseconds kForEver{20'000};

TEST(SimulatedLossElsewhere, WhoHasWaitedForTheFinderDoesNotWaitForAnotherDeadline) {
  const Story cut = story(true, kForEver);
  EXPECT_EQ(cut.text,
            "lost rank 2: no answer from the host of rank 2; "
            "lost rank 2: no answer from the host of rank 2");
  EXPECT_LT(cut.longest, kDeadline + milliseconds(600));
}

TEST(SimulatedLossElsewhere, WhoComputesForLongHasADeadlineInEachCommunicator) {
  EXPECT_EQ(story(false, milliseconds(1800)).text, "done; done");
  EXPECT_EQ(story(false, milliseconds(2400)).text, "done; done");
  EXPECT_EQ(story(false, kForEver).text,
            "lost rank 2: did not answer within 1.0 s; "
            "lost rank 2: did not answer within 1.0 s");
}

TEST(SimulatedLossElsewhere, AShorterDeadlineDoesNotCountInACommunicatorWithALongerOne) {
  EXPECT_GT(story(true, kForEver, milliseconds(5000)).longest, milliseconds(4500));
}

}  // namespace
}  // namespace tutti::test::lost_elsewhere_test
