// Messages between the ranks of a host.
#pragma once

#include <cstdint>

#include "comm/messages.hpp"
#include "comm/shm/group/local_group.hpp"

namespace tutti::shm {

/**
 * Carries messages through shared memory. Every two ranks have a mailbox for each direction, in
 * which they agree on a message; its data go, piece by piece, through the sender's staging memory,
 * in which there is room for one message at a time.
 */
class Mail final : public MessageCarrier {
 public:
  /** `host` outlives it. */
  explicit Mail(LocalGroup& group) : group_(group) {}

  bool offer(int peer, const Offer& offer) override;
  std::optional<Envelope> accepted(int peer, std::uint32_t number) override;
  std::unique_ptr<Movement> send(int peer, const ConstView& data) override;
  bool collect(Inbox& inbox) override;
  bool accept(int peer, const Envelope& wanted) override;
  std::unique_ptr<Movement> receive(int peer, const View& data) override;

  /** Blocks until `transfers`, which use nothing but this, are done, in a wait of `kind`. Throws
   * PeerLost, and CommunicationError if nothing comes from any source. */
  void finish(Transfers& transfers, Wait kind);

 private:
  class Sending;
  class Receiving;

  Mailbox& to(int peer) const { return group_.control().mailbox(group_.rank(), peer); }
  Mailbox& from(int peer) const { return group_.control().mailbox(peer, group_.rank()); }
  void ring(int peer) const { group_.control().slot(peer).mail.signal().bump(); }

  LocalGroup& group_;
  const Sending* staged_ = nullptr;  // whose pieces are in this rank's staging memory
};

}  // namespace tutti::shm
