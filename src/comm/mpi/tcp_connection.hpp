// A connection of two hosts' leaders over TCP.
#pragma once

#include <unistd.h>

#include "comm/failures/heartbeats.hpp"
#include "comm/mpi/socket.hpp"

namespace tutti::mpi {

/** The kernels' keepalive is the sign of life. */
class TcpConnection final : public HostConnection {
 public:
  /** `socket` is connected, and kept alive. */
  explicit TcpConnection(Socket socket) : socket_(std::move(socket)) {}

  News receive() override;
  void ping() noexcept override;
  void say_goodbye() noexcept override;
  void tell(const FailureReport& failure) noexcept override;
  bool all_acknowledged() const override;
  std::chrono::milliseconds silence() const override;

 private:
  enum class Signal : std::uint8_t { ping, failure, goodbye };
  /** Takes what has come; whether the connection goes on. */
  bool take(News& news);

  Socket socket_;
  const pid_t process_ = ::getpid();
};

}  // namespace tutti::mpi
