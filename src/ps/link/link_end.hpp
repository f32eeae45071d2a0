// What the two kinds of a worker's links have in common: how a link is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "comm/mpi/sockets/socket.hpp"
#include "ps/link/control.hpp"
#include "ps/link/link.hpp"
#include "ps/link/meeting.hpp"
#include "ps/link/replies.hpp"

namespace tutti::ps {

class LinkEnd : public Link {
 public:
  LinkEnd(mpi::Socket control, Name server, std::chrono::milliseconds timeout);
  LinkEnd(const LinkEnd&) = delete;
  LinkEnd& operator=(const LinkEnd&) = delete;
  /** Leaves. */
  ~LinkEnd() override;

  Reply wait(std::uint64_t number) final;
  void forget(std::uint64_t number) final;
  Reply refusal() final;
  bool has_room(std::int64_t requests) final;
  std::uint64_t answered() final;
  void check() final;
  void ask_presence() final;
  void await_presence(std::chrono::milliseconds waited) final;
  void set_reason(std::string_view reason) final;

 protected:
  /** Waits until request `number` has been answered; false at the deadline. Throws PeerLost. */
  virtual bool wait_for_answer(std::uint64_t number) = 0;
  /** Puts the answers that have come into replies_. Locked. */
  virtual void advance() = 0;

  /** Whether the control connection is silent: nobody has ended, or said that it does. */
  bool is_alive() const;
  /** Tells the server that the worker leaves, unless it has stopped; once. */
  void leave() noexcept;
  void throw_if_lost();
  /** From now on the link is lost. Both locked. */
  [[noreturn]] void lose(const std::string& reason);
  /** Waits until a request can be sent, and gives it its number. Throws PeerLost, and
   * InvalidArgument if the payload is longer than the draft. */
  std::uint64_t next_number(const RequestHeader& header, const Draft& draft,
                            std::unique_lock<std::mutex>& lock);
  /** Takes in what the server has sent over the control connection. Locked. Throws PeerLost if the
   * server serves no longer; `ended`: so does another connection say. */
  void hear_control(const std::optional<std::string>& ended = {});
  /** How long an answer may take. */
  std::chrono::milliseconds patience() const { return timeout_ + kGraceOfServer; }
  std::string late() const;

  std::mutex mutex_;
  mpi::Socket control_;
  Name server_;
  std::chrono::milliseconds timeout_;
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;  // those of which advance() has seen the answer
  Replies replies_;

 private:
  bool stopped_ = false;  // the last request has been sent
  bool has_left_ = false;
  std::string farewell_{static_cast<char>(ControlByte::left)};  // and why
  bool is_present_ = true;                                      // it has said so since it was asked
  std::optional<std::string> lost_;
  std::atomic<bool> is_lost_ = false;  // the same, without the lock
};

}  // namespace tutti::ps
