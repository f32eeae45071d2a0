// How the clocks of the hosts differ.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tutti/communicator.hpp"

namespace tutti::record {

/** How a rank's clock differs from that of rank 0, in nanoseconds. */
struct ClockOffset {
  std::int64_t offset = 0;  ///< what has to be taken from the rank's times
  std::int64_t error = 0;   ///< by how much the offset may be wrong; 0 for one clock
};

/** Equal for processes that have one CLOCK_MONOTONIC. */
std::uint64_t clock_identity();

/** A clock that is asked, for tests: nanoseconds. */
using ReadClock = std::int64_t (*)();

/**
 * The offset of this rank's clock. Collective. Rank 0 asks one rank of every other clock for its
 * time, some times, and believes the answer that came soonest: the offset is known to half the time
 * of that round trip, whichever way was the slower (Cristian, Probabilistic clock synchronization,
 * 1989). Clocks drift, by up to some microseconds a second where nothing disciplines them.
 */
ClockOffset measure_clock(Communicator& communicator, std::uint64_t identity, ReadClock read);

}  // namespace tutti::record
