// The order in which the calls of a communicator run.
#pragma once

#include <mutex>
#include <optional>

#include "base/ticket_lock.hpp"
#include "tutti/call.hpp"

namespace tutti {

/** The queues of a communicator's calls. */
struct Turns {
  TicketLock collectives;
  TicketLock sends;
  TicketLock receives;
  std::mutex drawing_several;
};

/** The place of a call among the collectives, the sends or the recvs; an exchange has one among the
 * sends and one among the recvs, a group all three. */
class Turn {
 public:
  Turn(Turns& turns, const Call& call);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

  void wait() const;
  void leave();

 private:
  std::optional<TicketLock::Place> first_;
  std::optional<TicketLock::Place> second_;
  std::optional<TicketLock::Place> third_;
};

}  // namespace tutti
