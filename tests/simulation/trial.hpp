// One run of a random program on simulated hosts, with what goes wrong there, and its judgement.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/simulation/network.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"

namespace tutti::test::simulated {

enum class StepKind : std::uint8_t {
  agree,
  all_gather,
  all_gather_v,
  all_to_all_v,
  broadcast,
  all_reduce,
  reduce_scatter_v,
  reduce,
  agreed_broadcast,   ///< whose members agree on it meanwhile
  agreed_all_reduce,  ///< likewise
  one_way_broadcast,  ///< of which nobody waits for an answer
  lanes,              ///< an all_reduce of which each rank of a host exchanges a share
  one_way_reduce,     ///< to whose root the others send, and go on
};
inline constexpr int kStepKinds = 13;
inline constexpr int kDrawnSteps = 10;  ///< some of which go one way, or in lanes, in the end

inline constexpr int kNobody = -1;

/** A collective. */
struct Step {
  StepKind kind;
  DType dtype;
  Reduce reduce;
  std::int64_t count;
  int root;
  int odd;   ///< a rank that asks for something else where members agree, or kNobody
  int late;  ///< a rank that comes later than others,
  std::chrono::microseconds late_by;  ///< by so much
};

enum class FaultKind : std::uint8_t {
  none,
  killed,            ///< a process
  host_killed,       ///< all processes of a host
  crashed,           ///< a host
  cut_off,           ///< a host's cable
  stopped,           ///< a process, for good
  host_stopped,      ///< all processes of a host, likewise
  interrupted,       ///< a process, for less than a deadline
  unplugged,         ///< a host's cable, for less than a deadline
  slowed,            ///< a host's link
  absent,            ///< a rank computes for longer than a deadline
  left,              ///< a rank destroys its communicator
  interrupted_call,  ///< the same, by an exception in the middle of a wait
  mistaken,          ///< a rank makes another call, where that or the others' goes one way
};
inline constexpr int kFaultKinds = 14;
inline constexpr int kDrawnKinds = 12;  ///< half of those who leave are interrupted

struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = 0;  ///< or the host of it
  std::chrono::microseconds at{};
  double factor = 1;  ///< of a slow link
  int step = 0;       ///< before which one the rank is absent, or leaves; in which it is mistaken
  /** Who finds the mistake is stopped for good when the ranks of its host know of it, and before it
   * tells others; */
  bool stops_finder = false;
  int stops_hearers = 0;  ///< and so many others of its host, when they have heard of it
};

struct Plan {
  int hosts;
  int ranks;  ///< on each host
  simulation::NetworkModel model;
  std::chrono::milliseconds timeout;
  std::vector<Step> steps;
  Fault fault;
  std::int64_t room = 0;  ///< of connections, which there are none of without: Cluster::set_room()
  /** For so long what is under way between those who are not at fault may still move; the deadline
   * of who waits for several begins when nothing does. */
  std::chrono::microseconds moves_on{};
};

/** What `seed` draws. */
Plan draw_plan(std::uint64_t seed);
/** One line on a plan. */
std::string describe(const Plan& plan);

struct Outcome {
  std::vector<std::string> complaints;  ///< none if all is as it must be
  std::string story;                    ///< how each rank has ended
  std::chrono::microseconds after{};    ///< the fault, when the last rank knew of it
};

/** Runs `plan`; draws what is random on the wires from `seed`. */
Outcome run_trial(const Plan& plan, std::uint64_t seed);

/** Lines on what has become of `seed`: the plan, how each rank has ended, and the first complaints.
 */
std::string report(const Plan& plan, std::uint64_t seed, const Outcome& outcome);

}  // namespace tutti::test::simulated
