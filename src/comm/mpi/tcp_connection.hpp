// A connection of two hosts' leaders over TCP.
#pragma once

#include <unistd.h>

#include "comm/failures/heartbeats.hpp"
#include "comm/mpi/socket.hpp"

namespace tutti::mpi {

/** The kernels' keepalive is the sign of life. */
class TcpConnection final : public HostConnection {
 public:
  /** `socket` is connected, and kept alive; so is `host_line`, which ends with the last process of
   * the other end's host. Without one, nothing is known of those. */
  explicit TcpConnection(Socket socket, Socket host_line = {})
      : socket_(std::move(socket)), host_line_(std::move(host_line)) {}

  News receive() override;
  void ping() noexcept override;
  void say_goodbye() noexcept override;
  void tell(const FailureReport& failure) noexcept override;
  bool all_acknowledged() const override;
  bool all_have_ended() const override;
  std::chrono::milliseconds silence() const override;

 private:
  enum class Signal : std::uint8_t { ping, failure, goodbye };
  /** Takes what has come; whether the connection goes on. */
  bool take(News& news);

  Socket socket_;
  Socket host_line_;  // nothing travels over it
  const pid_t process_ = ::getpid();
};

}  // namespace tutti::mpi
