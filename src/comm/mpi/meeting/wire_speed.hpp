// How fast the wire between two hosts is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time_source.hpp"
#include "comm/mpi/meeting/meeting.hpp"
#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/**
 * What one host does of a test in which each sends to the next one, over a connection of its own,
 * as often as it takes until kBytes are acknowledged within kFast, or the test is over. Who has to
 * wait for a core sees them later than they are, never sooner, so the best time counts.
 */
class WireSpeed {
 public:
  /** Twice what a limit to an average rate often lets pass at once; one that lets all of this pass
   * looks fast. */
  static constexpr std::int64_t kBytes = 512 << 10;
  /** Over a link of 10 Gbit/s they take longer. */
  static constexpr std::chrono::microseconds kFast{400};

  /** These outlive it; both sockets may be none. */
  WireSpeed(Socket& to_next, Socket& from_previous, const TimeSource& time = TimeSource::system());
  /** Goes on, without blocking; whether anything has moved. */
  bool step();
  /** Until more can be moved, or for `limit`, less than a second. */
  void nap(std::chrono::nanoseconds limit) const;
  /** Whether there is nothing left to do, for this host and the one before it. */
  bool is_done() const { return !to_next_ && !from_previous_; }
  /** Whether the wire to the next host is fast, as far as is known by now. */
  bool is_fast() const { return is_fast_; }

 private:
  bool send();
  bool receive();

  Socket& to_next_;        // closed once it is fast, or of no use,
  Socket& from_previous_;  // and this one once its other end is
  std::vector<std::byte> data_;
  std::int64_t left_ = 0;      // bytes to be sent
  std::uint64_t awaited_ = 0;  // so many are acknowledged then
  TimeSource::Clock::time_point since_{};
  bool is_fast_ = false;
  const TimeSource& time_;
};

/** By the leader of host `own` of several, who all do it at the same time: whether the wire to the
 * next one is fast. Closes the connections for that. Lasts for a few milliseconds of `time` at
 * most, whoever is slow, or dead. */
bool test_wire(std::vector<Peer>& peers, int own, int hosts,
               const TimeSource& time = TimeSource::system());

}  // namespace tutti::mpi
