// Messages between two ranks: what a send, a recv and an exchange are made of.
#pragma once

#include <cstdint>

#include "tutti/dtype.hpp"

namespace tutti {

/** As the source of a recv: whoever sends first. */
inline constexpr int kAnySource = -1;
/** As the tag of a recv: whatever tag the message has. */
inline constexpr std::int32_t kAnyTag = -1;

/** Of a message that has been received: who sent it, and its tag. */
struct Received {
  int source = kAnySource;
  std::int32_t tag = kAnyTag;
};

/** One side of a message, for Communicator::exchange(). The arguments mean what they mean there. */
struct Message {
  /** One that this rank sends to `destination`. */
  static Message send(ConstView in, int destination, std::int32_t tag = 0) {
    return {false, in, {}, destination, tag, nullptr};
  }
  /** One that this rank receives from `source`, which may be kAnySource; `tag` may be kAnyTag. */
  static Message recv(View out, int source, std::int32_t tag = 0, Received* received = nullptr) {
    return {true, {}, out, source, tag, received};
  }
  /** The memory that is read, or written. */
  ConstView view() const { return receives ? ConstView(out) : in; }

  bool receives = false;
  ConstView in;  ///< of a send
  View out;      ///< of a recv
  int peer = 0;  ///< the destination, or the source
  std::int32_t tag = 0;
  Received* received = nullptr;  ///< of a recv: written if not null
};

}  // namespace tutti
