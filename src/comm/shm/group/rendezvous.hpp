// How the holders of a ticket meet in one control segment.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/shm/memory/control.hpp"
#include "comm/shm/memory/segment.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::shm {

/** What a rank has after the ranks have met. */
struct Rendezvous {
  std::shared_ptr<Mapping> mapping;
  Control control;
  std::vector<ProcessWatch> watches;  ///< one a rank; this rank's own never ends
  FileDescriptor claim;               ///< rank 0: marks the ticket as used while it is held
};

/** Those who are to meet. */
struct Participants {
  /** The ranks as the user knows them, for messages. */
  std::vector<int> names;
  /** Called now and then while some are missing; what it throws ends the meeting. May be empty. */
  std::function<void(const std::vector<int>& missing)> idle;
  /** Called now and then from a deadline on; throws PeerLost unless have_come(), of those who were
   * missing. */
  using Investigation = std::function<void(const std::function<bool()>& have_come)>;
  /** Begins to find out why some are missing, somewhat before the deadline. If empty, the missing
   * are lost. */
  std::function<Investigation(const std::vector<int>& missing)> investigate;
  /** Called by each rank before it throws that a rank was lost, also later and in the parts that
   * are split off, on any thread. Does not throw. May be empty. */
  std::function<void()> on_loss;
  /** Called when the meeting has ended, however that was. Does not throw. May be empty. */
  std::function<void()> done = {};
};

/**
 * Rank 0 creates the segment that the ticket names, the others open it; once all of them have
 * joined, its name is removed and the ticket is used up. Blocks at most for `timeout`.
 *
 * Errors: InvalidArgument for a ticket in use, another size, or a rank that has joined already;
 * PeerLost naming those that did not come or died; SystemError.
 */
Rendezvous meet(const UniqueId& id, int rank, const Participants& participants,
                std::chrono::milliseconds timeout);

/** Whether this process has met others with the ticket, as this rank: it is used up. */
bool has_met(const UniqueId& id, int rank);

}  // namespace tutti::shm
