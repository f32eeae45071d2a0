// Processes that cannot start, and who is told what.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/launcher_line.hpp"
#include "ps/small_job.hpp"
#include "support/folder.hpp"
#include "support/thrown.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps::test::start_test {
namespace {

using tutti::test::text_of;

/** Endpoints at an address that is this process' alone, so ports are free. */
std::string endpoints(int servers) {
  const auto pid = static_cast<unsigned>(::getpid());
  const std::string host = "127." + std::to_string(((pid >> 16U) & 127U) | 128U) + "." +
                           std::to_string((pid >> 8U) & 255U) + "." + std::to_string(pid & 255U);
  std::string all;
  for (int i = 0; i < servers; ++i)
    all += (i == 0 ? "" : ",") + host + ":" + std::to_string(36100 + i);
  return all;
}

class PsStart : public ::testing::Test {
 protected:
  tutti::test::Folder made_;
  std::string folder_ = made_.path();
};

TEST_F(PsStart, TheLauncherKnowsThatAServerEndsByItselfBeforeItsWorkersBegin) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::setenv("TUTTI_PROGRESS_FD", std::to_string(ends[1]).c_str(), 1);
  FleetOptions options = small_job(Async{});
  options.timeout = std::chrono::milliseconds(50);
  EXPECT_THROW(Fleet(Placement::server(endpoints(1), 0, 1), options), PeerLost);
  ::unsetenv("TUTTI_PROGRESS_FD");
  ::close(ends[1]);
  std::string said(64, '\0');
  const ssize_t bytes = ::read(ends[0], said.data(), said.size());
  ::close(ends[0]);
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, bytes)));
  EXPECT_EQ(said, std::string(kEndsByItself) + "\n");
}

TEST_F(PsStart, AServerDoesNotMissWorkersThatWaitForAnother) {
  FleetOptions options = small_job(Async{});
  options.timeout = std::chrono::milliseconds(1500);
  std::jthread worker([options] {
    const std::string text =
        text_of<PeerLost>([&] { Fleet(Placement::worker(endpoints(2), 0, 1), options); });
    EXPECT_NE(text.find("server 1 ("), std::string::npos) << text;
  });
  options.timeout = std::chrono::milliseconds(400);
  EXPECT_EQ(text_of<PeerLost>([&] { Fleet(Placement::server(endpoints(2), 0, 1), options); }),
            "lost rank 0: worker 0: here, but did not begin within 0.4 s, as who waits for another "
            "server");
}

TEST_F(PsStart, WhyTheServerOfTheOwnProcessCannotServeIsTold) {
  std::ofstream(folder_ + "/manifest") << "none";
  FleetOptions options = small_job(Async{});
  options.checkpoint = folder_;
  options.save_at_end = true;
  Communicator world(0, 1, UniqueId::create());
  const std::string text =
      text_of<InvalidArgument>([&] { Fleet(Placement::threads(world), options); });
  EXPECT_TRUE(text.starts_with("server 0: ")) << text;
  EXPECT_NE(text.find(folder_), std::string::npos) << text;
}

TEST_F(PsStart, AFolderThatCannotBeWrittenToIsRefusedBeforeTheTraining) {
  FleetOptions options = small_job(Async{});
  options.save_at_end = true;
  Communicator world(0, 1, UniqueId::create());
  const auto start = [&] { Fleet(Placement::threads(world), options); };
  std::ofstream(folder_ + "/file") << "in the way";
  options.checkpoint = folder_ + "/file/saved";
  std::string text = text_of<SystemError>(start);
  EXPECT_NE(text.find(options.checkpoint + ": cannot be made: Not a directory"), std::string::npos)
      << text;
  options.checkpoint = "/proc/self";
  text = text_of<SystemError>(start);
  EXPECT_NE(text.find("/proc/self: cannot be written to"), std::string::npos) << text;
  options.checkpoint = folder_ + "/saved/here";
  start();
  EXPECT_TRUE(std::filesystem::exists(options.checkpoint + "/manifest"));
}

TEST_F(PsStart, ALastCheckpointThatFailsIsThrownWhereTheServerIsAThread) {
  // By name, with nothing but what is wanted: no compiler is to warn of the rest.
  const FleetOptions options{.tables = {{.name = "item", .dim = 4}},
                             .mode = Async{},
                             .checkpoint = folder_ + "/saved",
                             .save_at_end = true};
  Communicator world(0, 1, UniqueId::create());
  Fleet fleet(Placement::threads(world), options);
  std::filesystem::create_directories(options.checkpoint + "/manifest/in_the_way");
  fleet.worker().stop();
  EXPECT_THROW(fleet.close(), InvalidArgument);
  EXPECT_NO_THROW(fleet.close());
}

TEST_F(PsStart, ServersThatBeginWithDifferentCheckpointsAreAMismatchOnAll) {
  FleetOptions options = small_job(Sync{});
  options.checkpoint = folder_;
  options.save_at_end = true;
  const auto start = [&](const Placement& place, bool loads) {
    FleetOptions own = options;
    if (loads) own.load = folder_;
    Fleet fleet(place, own);
    if (fleet.is_server()) return fleet.server().run();
    fleet.worker().step();
    fleet.worker().stop();
  };
  const auto serve = [&](int index, bool loads) {
    start(Placement::server(endpoints(2), index, 1), loads);
  };
  const auto work = [&] { start(Placement::worker(endpoints(2), 0, 1), false); };
  {
    std::jthread first([&] { serve(0, false); });
    std::jthread second([&] { serve(1, false); });
    work();
  }
  for (const bool first_loads : {true, false}) {
    const auto expect_mismatch = [&](const auto& action) {
      const std::string text = text_of<MismatchError>(action);
      const std::string one = " has loaded a checkpoint of round 1";
      EXPECT_NE(text.find((first_loads ? "server 0" : "server 1") + one), std::string::npos)
          << text;
      EXPECT_NE(
          text.find((first_loads ? "server 1" : "server 0") + std::string(" has loaded none")),
          std::string::npos)
          << text;
    };
    std::jthread first([&] { expect_mismatch([&] { serve(0, first_loads); }); });
    std::jthread second([&] { expect_mismatch([&] { serve(1, !first_loads); }); });
    expect_mismatch(work);
  }
}

}  // namespace
}  // namespace tutti::ps::test::start_test
