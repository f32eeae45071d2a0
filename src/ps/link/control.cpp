// Bytes on a connection that is otherwise silent.
#include "ps/link/control.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <span>

namespace tutti::ps {

void send(const mpi::Socket& control, ControlByte byte) noexcept {
  mpi::send_all(control, mpi::bytes_of(byte));
}

ControlNews receive(const mpi::Socket& control, bool has_left) {
  ControlNews news;
  std::array<std::uint8_t, 64> bytes;
  while (true) {
    const ssize_t count = ::recv(control.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) {
      if (count == 0) news.error = 0;
      if (count < 0 && errno != EAGAIN && errno != EINTR) news.error = errno;
      return news;
    }
    for (const std::uint8_t byte : std::span(bytes).first(static_cast<std::size_t>(count))) {
      if (has_left) {
        if (news.reason.size() <= kMostReason) news.reason += static_cast<char>(byte);
        continue;
      }
      switch (static_cast<ControlByte>(byte)) {
        case ControlByte::wake:
          break;
        case ControlByte::ask:
          news.asked = true;
          break;
        case ControlByte::here:
          news.here = true;
          break;
        case ControlByte::late:
          news.late = true;
          news.told = true;
          break;
        case ControlByte::left:
          has_left = true;
          news.told = true;
          break;
        default:
          news.told = true;
      }
    }
    // The next look will tell of what comes behind them: who is woken by them is in a hurry.
    if (count < std::ssize(bytes)) return news;
  }
}

std::string reason_of(int error) {
  const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  return closed ? "its process has ended" : "its host cannot be reached";
}

}  // namespace tutti::ps
