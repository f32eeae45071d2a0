// How this process takes part in a multi-rank test run, and the fixture that runs a test on ranks.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/communicator.hpp"

namespace tutti::test {

/** What the ranks of a run are: processes under mpiexec, forked processes, or threads. */
enum class Launch { mpi, fork, threads };

/** The run as this process sees it; the same for all of its tests. */
struct World {
  Launch launch = Launch::threads;
  int ranks = 1;
  int rank = 0;                        ///< of this process; 0 where the ranks are threads
  std::vector<int> hosts;              ///< the host of each rank, pretended ones included
  UniqueId base = UniqueId::create();  ///< the tickets of a forked run derive from it
  std::uint64_t tests = 0;             ///< tests begun in this process

  /** Whether all ranks are on one host. */
  bool one_host() const;
};

World& world();

/** Ticket number `number` of those that derive from `base`: alike wherever it is computed. */
UniqueId derive(const UniqueId& base, std::uint64_t number);

/**
 * The host of each of `ranks` ranks. `layout` is "2x3" (two hosts of three ranks), "2+1" (a host
 * of two, a host of one) or "0,1,0" (the host of each rank). Throws InvalidArgument if it does not
 * describe `ranks` ranks. An empty layout is one host.
 */
std::vector<int> parse_hosts(std::string_view layout, int ranks);

/** Limits that end a broken test soon. */
CommOptions short_timeout(std::chrono::milliseconds timeout = std::chrono::seconds(20));

/** Runs `body(0)` to `body(ranks - 1)` at the same time, each on its thread. What a body throws is
 * a failure of the test. */
void on_threads(int ranks, const std::function<void(int)>& body);

/** A fixture whose tests run on every rank, however the ranks were launched. */
class RankTest : public ::testing::Test {
 protected:
  using Body = std::function<void(Communicator&)>;

  RankTest();

  static int ranks() { return world().ranks; }
  /**
   * Runs `body` on every rank with a communicator of its own making. The test fails if it throws
   * on any rank. All ranks make the same calls of on_ranks().
   */
  void on_ranks(const Body& body, const CommOptions& options = short_timeout());
  /** All ranks make `calls`, of which nobody need wait for an answer: they must end in a mismatch
   * whose text has all that is `shown`, in the barrier after them at the latest. */
  void expect_mismatch(const std::vector<std::string>& shown, const Body& calls);

 private:
  std::uint64_t calls_ = 0;
};

/** A ticket that rank 0 makes and all ranks get, for communicators that a test makes itself. */
UniqueId agree_on_ticket(Communicator& communicator);

}  // namespace tutti::test
