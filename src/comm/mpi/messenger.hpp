// Sends and receives the control messages of one tag.
#pragma once

#include <mpi.h>

#include <iterator>
#include <list>
#include <memory>

#include "comm/mpi/control_message.hpp"
#include "comm/mpi/session.hpp"

namespace tutti::mpi {

/** Messages below every eager limit, which go out without their receiver's help. None of the calls
 * blocks. Ranks are the session's. Not thread-safe. */
class Messenger {
 public:
  /** `session` outlives it. */
  Messenger(Session& session, int tag) : session_(session), tag_(tag) {}
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;
  /** Messages that are still under way are left to MPI, with their memory. */
  ~Messenger();

  /** A message that MPI refuses to send is as good as one that nobody answers. */
  void send(const ControlMessage& message, int destination);
  /** Drops the messages that have left. */
  void flush() noexcept;
  /** Whether a message to a rank of which is_meant(rank) has not left. */
  template <class IsMeant>
  bool is_sending(const IsMeant& is_meant) const {
    for (const Pending& pending : outgoing_) {
      if (is_meant(pending.peer)) return true;
    }
    return false;
  }

  /** handle(message, source) for all that have come. */
  template <class Handle>
  void receive(const Handle& handle) {
    collect();
    for (auto pending = incoming_.begin(); pending != incoming_.end();) {
      const auto next = std::next(pending);
      if (is_done(*pending)) {
        handle(*pending->message, pending->peer);
        incoming_.erase(pending);
      }
      pending = next;
    }
  }

 private:
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<ControlMessage> message;
    int peer = -1;
  };
  using Pendings = std::list<Pending>;

  /** Begins to receive what has come. */
  void collect();
  static bool is_done(Pending& pending);

  Session& session_;
  int tag_;
  Pendings outgoing_;
  Pendings incoming_;
};

}  // namespace tutti::mpi
