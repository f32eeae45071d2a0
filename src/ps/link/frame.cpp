// Moves bytes with sendmsg and recvmsg.
#include "ps/link/frame.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace tutti::ps {
namespace {

/** The kernel moves more at once than is fair. */
constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;

}  // namespace

Transfer::Transfer(std::span<const iovec> pieces) : at_(kMostPieces - pieces.size()) {
  std::copy(pieces.begin(), pieces.end(), pieces_.begin() + static_cast<std::ptrdiff_t>(at_));
}

template <class Call>
Moved Transfer::move(const Call& call, std::int64_t& budget, int& error) {
  while (at_ < kMostPieces) {
    iovec& first = pieces_[at_];
    if (first.iov_len == 0) {
      ++at_;
      continue;
    }
    if (budget <= 0) return Moved::some;
    // A long piece goes alone, and in parts.
    iovec part{first.iov_base, std::min(first.iov_len, kMostAtOnce)};
    msghdr message{};
    message.msg_iov = part.iov_len < first.iov_len ? &part : &first;
    message.msg_iovlen = part.iov_len < first.iov_len ? 1 : kMostPieces - at_;
    const ssize_t moved = call(message);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && errno == EAGAIN) return Moved::some;
    if (moved <= 0) {
      error = moved < 0 ? errno : 0;
      return Moved::ended;
    }
    budget -= moved;
    for (auto left = static_cast<std::size_t>(moved); left > 0;) {
      iovec& piece = pieces_[at_];
      const std::size_t taken = std::min(left, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
      piece.iov_len -= taken;
      left -= taken;
      if (piece.iov_len == 0) ++at_;
    }
  }
  return Moved::all;
}

Moved Transfer::send(const mpi::Socket& socket, std::int64_t& budget, int& error) {
  return move(
      [&](msghdr& message) {
        return ::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      },
      budget, error);
}

Moved Transfer::receive(const mpi::Socket& socket, std::int64_t& budget, int& error) {
  return move([&](msghdr& message) { return ::recvmsg(socket.get(), &message, MSG_DONTWAIT); },
              budget, error);
}

}  // namespace tutti::ps
