// The collectives of a trial, with data whose results are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/signature.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {

/** A group, and what its members keep from call to call. */
struct Team {
  HostGroup group;
  GroupAgreement agreement;
  AllReduce all_reduce;

  /** As AllReduce; `wire` outlives it. */
  Team(Wire& wire, std::vector<int> members, bool alone = false, AllReduce::LaneNumber lane = {})
      : group(wire, std::move(members)), agreement(group), all_reduce(group, alone, lane) {}
};

/** What a rank keeps from call to call. */
struct Caller {
  Team& all;
  Notes& notes;
  Team* lane = nullptr;    ///< where hosts are few and even: see Wire::has_lanes()
  Team* inside = nullptr;  ///< the ranks of its host; there, too
  Signature signature{};   ///< of its last call that was compared, or went one way
  Signature before{};      ///< of the last one before that went one way
  bool was_one_way = false;
  std::int64_t in_a_row = 0;  ///< of those from one root: see OneWayCall::Terms
};

enum class Manner : std::uint8_t {
  plain,     ///< members compare nothing but what goes one way, and what a step is about
  compared,  ///< they compare every call, as transports do
  mistaken,  ///< the rank makes another call instead
};

/** Whether a mistaken rank does nothing in a step, and goes on with the next one. */
bool is_left_out(const Step& step);

/** Makes the call of a step, the `number`th of its plan. Throws std::logic_error if the result is
 * wrong, MismatchError. */
void run_step(Caller& caller, const Step& step, std::size_t number, Manner manner);

}  // namespace tutti::test::simulated
