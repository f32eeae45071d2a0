// What two ranks tell each other while they connect.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "comm/mpi/channel.hpp"
#include "comm/mpi/meeting/meeting.hpp"
#include "comm/mpi/sockets/socket.hpp"
#include "comm/mpi/whole.hpp"

namespace tutti::mpi {

/**
 * Plain bytes for each line between this rank and others. Where a part of a whole connects, they
 * travel over connections of the whole, and where there is none over MPI. That does not survive
 * every message to a process that has died: if two are sent in a row, no call of Open MPI 4.1 need
 * ever return. So one message goes to each rank, whatever lines there are.
 */
class Words {
 public:
  /** `whole` may be null. Both outlive it. */
  Words(Channel& channel, Whole* whole) : channel_(channel), whole_(whole) {}

  Channel& channel() const { return channel_; }

  /** Sends `own` to every peer, in which those of one rank follow each other, and calls put(peer,
   * what it has sent). Throws PeerLost, of the whole if that has failed. */
  template <class T, class Put>
  void exchange(std::vector<Peer>& peers, const std::vector<T>& own,
                std::chrono::milliseconds timeout, const Put& put) const {
    const auto sent = std::make_shared<std::vector<T>>(own);
    const auto received = std::make_shared<std::vector<T>>(peers.size());
    std::vector<Message> messages;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (messages.empty() || messages.back().rank != peers[i].rank) {
        messages.push_back({peers[i].rank, &(*sent)[i], &(*received)[i], 0});
      }
      messages.back().bytes += std::ssize(bytes_of((*sent)[i]));
    }
    exchange(messages, {sent, received}, timeout);
    for (std::size_t i = 0; i < peers.size(); ++i) put(peers[i], (*received)[i]);
  }

 private:
  struct Message {
    int rank;
    const void* own;
    void* others;
    std::int64_t bytes;
  };
  /** `memory`: of these. */
  using Memory = std::vector<std::shared_ptr<const void>>;
  void exchange(const std::vector<Message>& messages, const Memory& memory,
                std::chrono::milliseconds timeout) const;
  void exchange_over_whole(const std::vector<Message>& messages, const Memory& memory,
                           std::chrono::milliseconds timeout) const;

  Channel& channel_;
  Whole* whole_;
};

}  // namespace tutti::mpi
