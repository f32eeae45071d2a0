// A connection between the launcher and the wrapper of a rank: messages with a type and a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_descriptor.hpp"

namespace tutti::launch {

/** What a message is. */
enum class MessageType : std::uint8_t {
  // From the wrapper:
  hello,       ///< of another machine: see Meeting
  proof,       ///< likewise
  orphaned,    ///< who has started the wrapper has ended
  started,     ///< the rank's process
  stopped,     ///< by which signal; it may go on
  continued,   ///< nothing
  passed_on,   ///< the launcher's SIGCONT; a stop that was told before is over
  progress,    ///< what the rank says of itself
  goes_on,     ///< the rank, which ends by itself, although it is unneeded
  log_failed,  ///< why its log has gaps
  ended,       ///< "code signal moment": an ExitStatus, and SteadyClock's ticks
  closed,      ///< the last lines of its output; nothing follows, no process is left
  // From the wrapper, on the connection for output alone:
  out,  ///< bytes of stdout
  err,  ///< bytes of stderr
  // From the launcher:
  challenge,  ///< to a wrapper of another machine: see Meeting
  setup,      ///< and what it is to run
  signal,     ///< to pass on to the rank
  unneeded,   ///< the rank, since no worker is left: SIGTERM for it, unless it ends by itself
};

/**
 * One end of a stream socket that carries messages: a byte for the type, four for the length, the
 * text. Never blocks. An end that has gone is not an error: what is sent to it is lost, and
 * receive() says so.
 */
class Channel {
 public:
  /** Bytes of a message in front of its text. */
  static constexpr std::size_t kHeader = 5;

  Channel() = default;
  explicit Channel(FileDescriptor socket);

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  /** Whether the connection is one to another machine, or may be. */
  bool remote() const;
  void close() { socket_.reset(-1); }

  /** Sends a message, or keeps what the socket does not take now. */
  void send(MessageType type, std::string_view text);
  /** Sends what was kept, as far as the socket takes it. */
  void flush();
  /** Bytes that were kept and can still be sent. */
  std::size_t unsent() const { return open() && !deaf_ ? unsent_.size() - sent_ : 0; }

  /** Nothing more is sent; the other end hears so after all that was. */
  void finish();

  /** Whether the other end has gone without finish(), or in the middle of a message: what it sent
   * last may be lost. */
  bool cut() const { return broken_ || !received_.empty(); }
  /** Bytes that have come of a message that is not there as a whole. */
  std::size_t incomplete() const { return received_.size(); }
  /** Gives all messages that have come to take(type, text). False once the other end has gone. */
  template <class Take>
  bool receive(const Take& take) {
    const bool alive = read_some();
    std::size_t used = 0;
    MessageType type{};
    std::string_view text;
    while (next(used, type, text)) take(type, text);
    received_.erase(0, used);
    return alive;
  }

 private:
  /** The other end takes nothing more; what it has sent can still be received. */
  void hush();
  bool read_some();
  bool next(std::size_t& used, MessageType& type, std::string_view& text) const;

  FileDescriptor socket_;
  bool deaf_ = false;    // the other end takes nothing more
  bool broken_ = false;  // nor sends more, by an error
  std::string unsent_;
  std::size_t sent_ = 0;  // of unsent_
  std::string received_;
};

/** Two ends of a new connection within this machine. Throws SystemError. */
std::pair<FileDescriptor, FileDescriptor> connected_pair();

}  // namespace tutti::launch
