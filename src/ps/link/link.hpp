// A worker's end of the link to one server: the unit of failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ps/link/message.hpp"

namespace tutti::ps {

/** Where the payload of a message that is not yet sent is written; 64-byte aligned. */
struct Draft {
  std::span<std::byte> payload;
  std::int64_t handle = 0;
  bool stays = false;  ///< its memory stays the drafter's when it is sent, to be drafted once
};

/** What a request came to. */
struct Reply {
  ReplyHeader header;
  std::vector<std::byte> payload;
};

/** A server has so much longer than the deadline to answer: it can say for whom it waits. */
inline constexpr std::chrono::milliseconds kGraceOfServer{1000};
/** Requests of a link that are not answered, at most: then sending waits. */
inline constexpr std::uint64_t kMostUnanswered = 1024;

/**
 * Requests go to the server in the order in which they are sent, and are answered in that order. A
 * request is there as a whole or not at all, whenever this process dies. Safe from several threads,
 * but a Draft belongs to the thread that sends it next.
 *
 * The link is lost when the server's process has ended (at once: its end of a socket closes), when
 * its host cannot be reached (kProbes seconds), or when it has not answered before the deadline.
 * From then on every call throws PeerLost naming the server, and what was not answered counts as
 * not applied.
 */
class Link {
 public:
  virtual ~Link() = default;

  /** Room for `bytes` of payload: on a host where the server will read it. Waits for room, within
   * the deadline. Throws SystemError if there is no memory. */
  virtual Draft draft(std::int64_t bytes) = 0;
  /** Gives back what was drafted and is not sent. */
  virtual void discard(const Draft& draft) = 0;
  /** Sends what was drafted, which is gone even if this throws, unless it stays. Does not wait for
   * the server, but for the oldest of kMostUnanswered requests. Returns the request's number: 1, 2,
   * ... */
  virtual std::uint64_t send(const RequestHeader& header, const Draft& draft) = 0;
  /** A request follows at once: a server that sleeps wakes up while it is being written. */
  virtual void announce() {}
  /** Whether so many requests can be sent now without a wait. */
  virtual bool has_room(std::int64_t requests) = 0;
  /** The number of the last request that the server has answered. Does not block; a cache line on a
   * host. Throws PeerLost. */
  virtual std::uint64_t answered() = 0;
  /** Waits until request `number` has been answered, and takes the reply; each is asked for once,
   * or dropped by forget(). Throws PeerLost. */
  virtual Reply wait(std::uint64_t number) = 0;
  /** Nobody will ask for the reply, unless it is a refusal: that is kept for refusal(). */
  virtual void forget(std::uint64_t number) = 0;
  /** The first refusal of a forgotten request, once; Outcome::done if there is none. */
  virtual Reply refusal() = 0;
  /** Throws PeerLost if the link is lost. Cheap. */
  virtual void check() = 0;
  /** Asks the server's process for a sign that it is at work, which a stopped one is not. */
  virtual void ask_presence() = 0;
  /** Waits for that as long as for an answer, of which the caller has waited for `waited`. Throws
   * PeerLost. */
  virtual void await_presence(std::chrono::milliseconds waited) = 0;

  /** What the server is told if the worker leaves without stop, which it does when this is
   * destroyed: why. Cut to kMostReason bytes. */
  virtual void set_reason(std::string_view reason) = 0;

  /** Whether the server's memory can be read here. */
  virtual bool on_this_host() const = 0;
  virtual std::int64_t bytes_sent() const { return 0; }
  virtual std::int64_t bytes_received() const { return 0; }
};

}  // namespace tutti::ps
