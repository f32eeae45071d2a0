// A server's end of the link to one worker.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/mpi/sockets/socket.hpp"
#include "ps/link/control.hpp"
#include "ps/link/doorbell.hpp"
#include "ps/link/links.hpp"

namespace tutti::ps {

/** Handles what is the same inside a host and between hosts: how a link ends. Not thread-safe. */
class Peer {
 public:
  Peer(mpi::Socket control, int worker) : control_(std::move(control)), worker_(worker) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;

  int worker() const { return worker_; }

  /** The next request that has not been handed out, if it is there. Cheap. */
  std::optional<Request> take();
  /** Answers the oldest that has been handed out. */
  void answer(const Request& request, const ReplyHeader& header,
              std::span<const std::byte> payload);

  /** Its descriptors, and what epoll is to look for; -1: there is none. */
  int control() const { return control_.get(); }
  virtual int data() const { return -1; }
  virtual std::uint32_t data_events() const { return 0; }
  /** Epoll has something to tell of them. */
  void handle_control();
  void handle_data();

  /** Whether requests may be there without a descriptor telling. If it is asked to, by
   * set_sleeping(), the doorbell does, or else the control connection. */
  virtual bool shares_memory() const = 0;
  virtual void set_doorbell(const DoorbellAddress& /*address*/) {}
  virtual void set_sleeping(bool /*sleeping*/) {}

  /** Whether answers wait that the connection has not taken. */
  virtual bool is_sending() const { return false; }
  /** Tells the worker that it is served no longer, and ends the link. */
  void end(ControlByte why = ControlByte::end);
  bool has_ended() const { return !control_; }
  /** Why the worker is lost, once, when its last whole request has been taken. */
  std::optional<std::string> loss();

 protected:
  virtual std::optional<Request> take_request() = 0;
  virtual void send_answer(const Request& request, const ReplyHeader& header,
                           std::span<const std::byte> payload) = 0;
  /** Moves what can be moved on the data connection, about `most` bytes; an errno, or 0, if that
   * has ended. */
  virtual std::optional<int> move_data(std::int64_t /*most*/) { return std::nullopt; }
  /** Receives whatever the worker has sent, however much: it sends no more. */
  virtual void drain() {}
  /** The link has ended: nothing more is sent or received. */
  virtual void close_data() {}

  /** The worker sends what makes no sense: the link ends. */
  void give_up(const std::string& reason);

 private:
  void close(int error);
  /** What has come over the control connection. */
  ControlNews hear();

  /** Of the data connection, before that of control. */
  struct DataEnd {
    int error;
    std::chrono::steady_clock::time_point heard_by;  // nothing more is expected then
  };

  mpi::Socket control_;
  int worker_;
  std::optional<DataEnd> data_end_;
  bool left_ = false;     // it has said so,
  std::string why_;       // and why
  bool stopped_ = false;  // its last request has been handed out
  bool drained_ = false;  // so has its last before the link ended
  std::optional<std::string> reason_;
};

}  // namespace tutti::ps
