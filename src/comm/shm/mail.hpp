// Messages between two ranks of a host.
#pragma once

#include <cstdint>

#include "comm/shm/host.hpp"
#include "tutti/call.hpp"

namespace tutti::shm {

/**
 * The messages that a rank sends to others of its host and receives from them; one of each at a
 * time, each from any thread. Both sides say what they have and want, so no other signature is
 * compared.
 */
class Mail {
 public:
  /** `host` outlives it. */
  explicit Mail(Host& host) : host_(host) {}

  /** Runs a send to rank `destination` of the host. Returns when the receiver has taken the data.
   * Throws MismatchError on both sides, and PeerLost. */
  void send(const Call& call, int destination);
  /** Runs a recv from rank `source` of the host. Throws as send() does. */
  void recv(const Call& call, int source);

 private:
  Host& host_;
  std::uint32_t sent_ = 0;  // pieces that this rank has put into its mailbox
};

}  // namespace tutti::shm
