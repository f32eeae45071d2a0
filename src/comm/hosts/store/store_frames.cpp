// Moves bytes over a socket that never blocks.
#include "comm/hosts/store/store_frames.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr int kLook = 50;  // ms

/** move(bytes) is a call of the kernel's that moves some of them. */
template <class Bytes, class Move>
bool move_all(const mpi::Socket& socket, Bytes bytes, short event, const Patience& patience,
              const Move& move) {
  const bool sleeps = !patience.look && patience.timeout == Waiter::kForEver;
  const int pause = sleeps ? -1 : kLook;
  Deadline deadline(patience.timeout);
  while (!bytes.empty()) {
    const ssize_t moved = move(bytes);
    if (moved > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
      deadline = Deadline(patience.timeout);
      continue;
    }
    if (moved == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    std::array<pollfd, 2> entries{pollfd{socket.get(), event, 0},
                                  pollfd{patience.stop, POLLIN, 0}};  // -1 is passed over
    ::poll(entries.data(), entries.size(), pause);
    if (entries[1].revents != 0) return false;
    if (patience.look) patience.look();
    if (deadline.expired()) {
      throw DeadlineExceeded("no answer within " + seconds_text(patience.timeout));
    }
  }
  return true;
}

}  // namespace

bool send_bytes(const mpi::Socket& socket, std::span<const std::byte> bytes,
                const Patience& patience) {
  return move_all(socket, bytes, POLLOUT, patience, [&](std::span<const std::byte> rest) {
    return ::send(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

bool receive_bytes(const mpi::Socket& socket, std::span<std::byte> bytes,
                   const Patience& patience) {
  return move_all(socket, bytes, POLLIN, patience, [&](std::span<std::byte> rest) {
    return ::recv(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  });
}

}  // namespace tutti
