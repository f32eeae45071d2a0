// A server's end of the link to one worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/mpi/socket.hpp"
#include "ps/link/links.hpp"

namespace tutti::ps {

/** Handles what is the same inside a host and between hosts: how a link ends. Not thread-safe. */
class Peer {
 public:
  Peer(mpi::Socket socket, int worker) : socket_(std::move(socket)), worker_(worker) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;

  int worker() const { return worker_; }
  const mpi::Socket& socket() const { return socket_; }

  /** The next request that has not been handed out, if it is there. Cheap. */
  std::optional<Request> take();
  /** Answers the oldest that has been handed out. */
  void answer(const Request& request, const ReplyHeader& header,
              std::span<const std::byte> payload);
  /** Something can be read from the socket or written to it, or it has ended. */
  void handle_socket();
  /** What epoll is to look for. */
  virtual std::uint32_t events() const = 0;
  /** Whether requests may be there without the socket telling: then take() is asked again and
   * again, and before the server sleeps it tells. */
  virtual bool shares_memory() const = 0;
  /** Asks for a byte on the socket with the next request; false: not any more. */
  virtual void set_sleeping(bool) {}

  /** Tells the worker that it is served no longer, and ends the link. */
  void end();
  bool has_ended() const { return !socket_; }
  /** Why the worker is lost, once, when its last whole request has been taken. */
  std::optional<std::string> loss();

 protected:
  virtual std::optional<Request> take_request() = 0;
  virtual void send_answer(const Request& request, const ReplyHeader& header,
                           std::span<const std::byte> payload) = 0;
  /** Reads and writes what can be; an errno, or 0, if the connection has ended and nothing that
   * could still be taken is left in it. */
  virtual std::optional<int> move_bytes() = 0;
  virtual void say_end() = 0;
  /** Whether the worker said that it has left. */
  virtual bool has_left() const = 0;

  /** The worker sends what makes no sense: the link ends. */
  void give_up(const std::string& reason);

 private:
  mpi::Socket socket_;
  int worker_;
  bool stopped_ = false;  // its last request has been handed out
  bool drained_ = false;  // so has its last before the link ended
  std::optional<std::string> reason_;
};

}  // namespace tutti::ps
