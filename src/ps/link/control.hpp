// The connection that shows whether the other side of a link is alive.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::ps {

/** All that is ever sent over it, once a worker and a server have met. It is never full, so it can
 * have the kernel end it when the other host is gone (mpi::keep_alive): a connection of data that a
 * process does not read for a while would be ended just so. */
enum class ControlByte : std::uint8_t {
  wake,  ///< by the worker: there is a request in shared memory (where it cannot ring)
  left,  ///< by the worker: it leaves without stop; why follows, if it says so, and nothing else
  end,   ///< by the server: it serves this worker no longer
  late,  ///< by the server: nor this one, for which others have waited until their deadline
  ask,   ///< by the worker: is the server's process at work?
  here,  ///< by the server: it is
};

void send(const mpi::Socket& control, ControlByte byte) noexcept;

/** What has been received. */
struct ControlNews {
  bool told = false;         ///< `left`, `end` or `late` was among it
  bool late = false;         ///< so was `late`
  bool asked = false;        ///< so was `ask`
  bool here = false;         ///< or `here`
  std::string reason{};      ///< what has come of what follows `left`, not much beyond kMostReason
  std::optional<int> error;  ///< the connection is over: an errno, or 0
};
/** `has_left`: `left` has come before. */
ControlNews receive(const mpi::Socket& control, bool has_left = false);

/** So much later than one connection of a link the other one may end, and what came before that
 * says why. */
inline constexpr std::chrono::milliseconds kForTheEnd{1000};

/** Bytes of a reason; what goes beyond is left out. */
inline constexpr std::size_t kMostReason = 1024;

/** Bytes that a connection of data moves before the others have their turn. */
inline constexpr std::int64_t kMostInATurn = std::int64_t{1} << 20;

/** "its process has ended" or "its host cannot be reached". */
std::string reason_of(int error);

}  // namespace tutti::ps
