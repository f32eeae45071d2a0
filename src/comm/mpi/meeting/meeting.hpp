// How two ranks who have each other's endpoints come to connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** Between two hosts there is a connection of their leaders, and one that all ranks hold; besides,
 * one or two for messages of the leaders, see Wire::has_ahead(), and one for those of each lane.
 * For a moment there is one to test how fast the wire is. */
enum class Line : std::int32_t { leaders, hosts, collective, ahead, test };
constexpr bool is_stream(Line line) { return line == Line::collective || line == Line::ahead; }

/** The other end of a line. */
struct Peer {
  int host = 0;
  Line line = Line::leaders;
  int rank = 0;                   ///< its leader, or the one of a lane
  std::chrono::seconds quiet{1};  ///< before a sign of life, where the kernels are to give some
  Endpoint endpoint{};
  Socket socket{};         ///< once each has shown the other who it is
  bool wanted = true;      ///< by both
  bool has_heard = false;  ///< who listens at one of its addresses, whether or not that is it
  int error = 0;           ///< of this process, for which it could not be called
};

/** Connects to one peer: to all of its addresses at once, for some may lead nowhere, and says hello
 * over each, for another machine may have one of them, too. The peer may take its time to look, so
 * what is connected waits for it. */
class Connector {
 public:
  /** `peer` and `own` outlive it. */
  Connector(Peer& peer, const Endpoint& own, int own_host);
  /** Goes on; does not block. */
  void step();

 private:
  struct Attempt {
    Socket socket;
    bool said_hello = false;
  };
  /** Whether that is still of use. */
  bool go_on(Attempt& attempt);

  Peer& peer_;
  const Endpoint& own_;
  int own_host_;
  std::vector<Attempt> attempts_;
};

/** Lets peers in, who show that they were given the endpoint. Strangers who say nothing keep them
 * waiting for a tenth of a second, and as long again for each 64 of them. */
class Acceptor {
 public:
  /** These outlive it. */
  Acceptor(std::vector<Peer>& peers, const Endpoint& own, const Socket& listener)
      : peers_(peers), own_(own), listener_(listener) {}
  /** Goes on; does not block. */
  void step();
  /** For which it could let nobody in; or 0. */
  int error() const { return error_; }

 private:
  struct Stranger {
    Socket socket;
    std::chrono::steady_clock::time_point since;
  };
  /** Takes connections, while there are not too many that have not said who they are. */
  void let_in();
  void welcome(Socket& stranger, Line line, int host);

  std::vector<Peer>& peers_;
  const Endpoint& own_;
  const Socket& listener_;
  std::vector<Stranger> strangers_;
  int error_ = 0;
};

}  // namespace tutti::mpi
