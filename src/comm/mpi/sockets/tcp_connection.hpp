// Connections of two hosts over TCP: of their leaders, and of all their ranks.
#pragma once

#include <memory>

#include "comm/failures/heartbeats.hpp"
#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** The kernels' keepalive is the sign of life. */
class TcpConnection final : public HostConnection {
 public:
  /** `socket` is connected, and kept alive; so is `host_line`, which ends with the last process of
   * the other end's host. Without one, nothing is known of those. */
  explicit TcpConnection(std::shared_ptr<const Socket> socket,
                         std::shared_ptr<const Socket> host_line = nullptr)
      : socket_(std::move(socket)), host_line_(std::move(host_line)) {}

  News receive() override;
  void say_goodbye() noexcept override;
  void tell(const FailureReport& failure) noexcept override;
  bool all_have_ended() const override;

 private:
  enum class Signal : std::uint8_t { ping, failure, goodbye };
  friend class TcpLine;
  /** Takes what has come; whether the connection goes on. */
  bool take(News& news);

  std::shared_ptr<const Socket> socket_;
  std::shared_ptr<const Socket> host_line_;
};

/** What the other kernel acknowledges is its sign of life. Other processes may hold the same
 * socket, and send over it as well. */
class TcpLine final : public HostLine {
 public:
  /** Who reads what comes: nobody, or a TcpConnection over the same socket. */
  enum class Reader : std::uint8_t { none, connection };
  TcpLine(std::shared_ptr<const Socket> socket, Reader reader)
      : socket_(std::move(socket)), reader_(reader) {}

  bool ping() noexcept override;
  bool has_answered() const override;
  std::chrono::milliseconds silence() const override;
  bool has_ended() const override { return state_of(*socket_).ended; }

 private:
  std::shared_ptr<const Socket> socket_;
  Reader reader_;
  std::uint64_t acknowledged_ = 0;  // before the last ping()
};

}  // namespace tutti::mpi
