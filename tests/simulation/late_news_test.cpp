// On simulated hosts the news of a mismatch come late: who knows of it has left by then.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "comm/batch.hpp"
#include "comm/simulation/wire.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::SimulatedWire;
using std::chrono::milliseconds;

/** Of two hosts with two ranks each. Those of host 1 wait for rank 0 until rank 1 tells what it has
 * shown rank 0 long before: what they throw. `is_noted`: a thread of rank 1 has noted it as well.
 */
std::string story(bool knows_of_it, bool is_noted = false) {
  Cluster cluster(2, 2, NetworkModel{}, 1);
  std::string heard;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, milliseconds(5000));
    wire.connect();
    if (process.rank() == 0) {
      if (knows_of_it) wire.watch().note_mismatch("they differ");
    } else if (process.rank() == 1) {
      process.compute(milliseconds(1000));
      if (is_noted) wire.watch().note_mismatch("they differ");
      wire.watch().announce_mismatch("they differ");
    } else {
      std::array<std::byte, 8> data{};
      Batch batch(wire, Wire::Traffic::collective);
      batch.recv(data.data(), std::ssize(data), 0);
      try {
        batch.wait();
      } catch (const std::exception& error) {
        heard += std::string(heard.empty() ? "" : "; ") + error.what();
      }
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::minutes(1));
  return heard;
}

TEST(SimulatedLateNews, WhoKnowsOfAMismatchDoesNotTellThatItLeaves) {
  EXPECT_EQ(story(true), "they differ; they differ");
  EXPECT_EQ(story(true, true), "they differ; they differ");
  EXPECT_NE(story(false).find("lost rank 0"), std::string::npos);
}

}  // namespace
}  // namespace tutti::test
