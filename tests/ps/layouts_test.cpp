// Every way to place workers and servers starts, trains, ends; and what keeps one from starting is
// told to all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "ps/small_job.hpp"
#include "support/folder.hpp"
#include "support/leftovers.hpp"
#include "support/thrown.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {
namespace {

using tutti::test::text_of;

class Layouts : public tutti::test::RankTest {
 protected:
  /** Runs a whole job on this rank. */
  static void run(const Placement& placement, const Mode& mode) {
    Fleet fleet(placement, test::small_job(mode));
    run(fleet, std::holds_alternative<Sync>(mode));
  }
  static void run(Fleet& fleet, bool divides) {
    if (fleet.is_server()) {
      fleet.server().run();
      EXPECT_TRUE(fleet.server().stats().lost_workers.empty());
      EXPECT_THROW(fleet.worker(), InvalidArgument);
    } else {
      EXPECT_THROW(fleet.server(), InvalidArgument);
      EXPECT_EQ(test::work(fleet.worker(), divides), "");
    }
  }
  /** As many servers as workers, or one less. */
  static int servers(const Communicator& world) { return world.world_size() / 2; }
};

TEST_F(Layouts, TheLastRanksServe) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})}) {
      run(Placement::last_ranks(world, servers(world)), mode);
    }
  });
}

TEST_F(Layouts, ThreadsServe) {
  on_ranks([](Communicator& world) {
    for (const Mode& mode : {Mode(Sync{}), Mode(Async{})}) run(Placement::threads(world), mode);
  });
}

TEST_F(Layouts, OneRankOfEachHostServes) {
  const auto& hosts = tutti::test::world().hosts;
  for (const int host : hosts) {
    if (std::count(hosts.begin(), hosts.end(), host) < 2) GTEST_SKIP() << "a host has one rank";
  }
  on_ranks([](Communicator& world) { run(Placement::one_per_host(world), Sync{}); });
}

TEST_F(Layouts, TheCommunicatorIsNotNeededAfterTheStart) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    std::optional<Communicator> own = world.split(0, world.global_rank());
    std::optional<Placement> placement = Placement::last_ranks(*own, 1);
    Fleet fleet(*placement, test::small_job(Async{}));
    placement.reset();
    own->abort("no longer needed");
    own.reset();
    run(fleet, false);
  });
}

TEST_F(Layouts, OtherOptionsOnOneRankAreAMismatchOnAll) {
  if (ranks() < 2) GTEST_SKIP() << "nobody differs from itself";
  on_ranks([](Communicator& world) {
    for (int other = 0; other < world.world_size(); ++other) {
      FleetOptions options = test::small_job(Async{});
      if (world.global_rank() == other) options.seed = 8;
      const std::string text = text_of<MismatchError>(
          [&] { Fleet(Placement::last_ranks(world, servers(world)), options); });
      EXPECT_NE(text.find("seed 7"), std::string::npos) << text;
      EXPECT_NE(text.find("seed 8"), std::string::npos) << text;
    }
  });
}

TEST_F(Layouts, OptionsThatMakeNoSenseOnOneRankAreRefusedOnAll) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    FleetOptions options = test::small_job(Async{});
    if (world.global_rank() == 0) options.tables[0].dim = 0;
    const std::string text = text_of<InvalidArgument>(
        [&] { Fleet(Placement::last_ranks(world, servers(world)), options); });
    const std::string who = world.global_rank() == 0 ? "" : "worker 0: ";
    EXPECT_TRUE(text.starts_with(who + "table 'item': dim is 0")) << text;
  });
}

TEST_F(Layouts, AServerWithoutMemoryIsNamedOnAll) {
  on_ranks([](Communicator& world) {
    FleetOptions options = test::small_job(Async{});
    options.dense[0].shape = {1 << 20, 1 << 20};
    options.dense[0].initial.clear();
    options.slicing.slice = false;
    const auto start = [&] { Fleet(Placement::threads(world), options); };
    const std::string text = text_of<SystemError>(start);
    EXPECT_TRUE(text.starts_with("server 0: cannot reserve 4398046511")) << text;
  });
}

TEST_F(Layouts, AServerThatCannotLoadIsNamedOnAll) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    FleetOptions options = test::small_job(Async{});
    options.load = "/no/such/checkpoint";
    std::string text;
    try {
      Fleet(Placement::last_ranks(world, 1), options);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_NE(text.find("/no/such/checkpoint"), std::string::npos) << text;
    EXPECT_EQ(text.find("server 0: ") == 0, world.global_rank() != world.world_size() - 1) << text;
  });
}

TEST_F(Layouts, AServerThatCannotSaveIsNamedOnAll) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    const tutti::test::Folder folder;
    std::ofstream(folder / "manifest") << "none";
    FleetOptions options = test::small_job(Async{});
    options.checkpoint = folder.path();
    options.save_at_end = true;
    const auto start = [&] { Fleet(Placement::last_ranks(world, 1), options); };
    const std::string text = text_of<InvalidArgument>(start);
    EXPECT_NE(text.find("damaged"), std::string::npos) << text;
  });
}

TEST_F(Layouts, NothingIsLeftBehind) {
  if (ranks() < 2) GTEST_SKIP() << "one rank is no server and worker";
  on_ranks([](Communicator& world) {
    const tutti::test::Leftovers before;
    run(Placement::last_ranks(world, 1), Async{});
    world.barrier();
    EXPECT_EQ(before.in_dev_shm(), "");
    world.barrier();
  });
}

}  // namespace
}  // namespace tutti::ps
