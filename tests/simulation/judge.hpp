// How the ranks of a trial have ended, and whether that is as it must be.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/simulation/process.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {

/** How a rank has ended. */
struct Ending {
  bool ended = false;
  bool completed = false;
  bool left = false;
  bool mismatch = false;
  std::vector<int> lost;
  std::string text;  ///< of its exception
  bool other_error = false;
  simulation::Scheduler::Time at;
};

/** What has become of a plan. */
struct Course {
  std::vector<Ending> endings;  ///< by rank
  simulation::Scheduler::Time begun;
  std::optional<simulation::Scheduler::Time> struck{};  ///< when the fault came
  std::set<int> late{};                                 ///< who had not come to a call then
  std::set<int> stopped{};  ///< who was stopped when it knew of a mismatch

  Ending& of(int rank) { return endings[static_cast<std::size_t>(rank)]; }
  const Ending& of(int rank) const { return endings[static_cast<std::size_t>(rank)]; }
};

/** Of a plan that `cluster` has run. */
Outcome judge(const Plan& plan, const simulation::Cluster& cluster, const Course& course);

}  // namespace tutti::test::simulated
