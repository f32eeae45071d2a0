// Connections between hosts that show, by the kernels' own signs of life, who is gone.
#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/failure.hpp"
#include "comm/layout.hpp"
#include "comm/mpi/socket.hpp"

namespace tutti::mpi {

class Channel;

/** All ranks of `hosts`, none of which answers. */
Loss loss_of_hosts(const Layout& layout, std::span<const int> hosts);

/**
 * A TCP connection with keepalive from the leader of a host, its lowest rank, to those of the
 * nearest hosts: all of them up to 17 hosts, beyond that the 8 before and the 8 behind it. The
 * kernels exchange the signs of life, about one a second where nothing else travels: so a process
 * that is stopped or computes is not taken for dead, no thread is needed, and a process that ends
 * ends its connections. Ranks are the channel's. Not thread-safe.
 */
class Heartbeats {
 public:
  /**
   * Connects; a collective of the leaders. Each pair tries all addresses that the other has, and
   * shows by a random number, which went over MPI, that it is not a stranger. Who cannot be
   * reached within two seconds or a quarter of a deadline, behind a firewall for example, goes
   * without, and a log line says so. PeerLost as by any wait of `channel`.
   */
  static std::unique_ptr<Heartbeats> connect(Channel& channel, const Layout& layout);
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;
  /** Says goodbye, so that nobody takes this process for dead. */
  ~Heartbeats();

  /** What a connection tells: a failure that another host has found, a leader whose process has
   * ended, or the hosts that do not answer. */
  std::optional<FailureReport> look();
  /** Tells the other hosts. They get it even if this process ends. */
  void tell(const FailureReport& failure) noexcept;

  /** Sends a byte to every host, for their kernels to acknowledge. */
  void ping() noexcept;
  /** The hosts whose kernels do not, a moment after ping(), or which were not heard of lately. */
  std::vector<int> unreachable() const;

 private:
  struct Connection {
    int host;
    Socket socket;  ///< none once it has ended
    bool goodbye = false;
    bool timed_out = false;
  };
  enum class Signal : std::uint8_t { ping, failure, goodbye };
  using Clock = std::chrono::steady_clock;

  Heartbeats(Layout layout, std::vector<Connection> connections)
      : layout_(std::move(layout)), connections_(std::move(connections)) {}
  /** Handles what has come in; whether the connection goes on. */
  bool receive(Connection& connection, std::optional<FailureReport>& failure);
  void send(Signal signal) noexcept;

  Layout layout_;
  std::vector<Connection> connections_;
  const pid_t process_ = ::getpid();
  Clock::time_point pinged_{};
};

}  // namespace tutti::mpi
