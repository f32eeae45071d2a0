// Sends and receives messages over a stream socket.
#include "launch/process/channel.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

constexpr std::size_t kPiece = 128 << 10;  // read at once

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Channel::Channel(FileDescriptor socket) : socket_(std::move(socket)) {}

void Channel::send(MessageType type, std::string_view text) {
  if (!open() || deaf_) return;
  std::array<char, kHeader> header{static_cast<char>(type)};
  const auto length = static_cast<std::uint32_t>(text.size());
  std::memcpy(header.data() + 1, &length, sizeof(length));
  std::size_t taken = 0;
  if (unsent() == 0) {
    std::array<iovec, 2> parts{iovec{header.data(), header.size()},
                               iovec{const_cast<char*>(text.data()), text.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && !would_block()) return hush();
    if (sent > 0) taken = static_cast<std::size_t>(sent);
  }
  if (taken < kHeader) unsent_.append(header.data() + taken, kHeader - taken);
  unsent_.append(text.substr(taken > kHeader ? taken - kHeader : 0));
}

void Channel::flush() {
  while (unsent() > 0) {
    const ssize_t sent =
        ::send(socket_.get(), unsent_.data() + sent_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && would_block()) break;
    if (sent < 0) return hush();
    if (sent > 0) sent_ += static_cast<std::size_t>(sent);
  }
  if (sent_ > unsent_.size() / 2) {
    unsent_.erase(0, sent_);
    sent_ = 0;
  }
}

bool Channel::remote() const {
  int domain = AF_UNIX;
  socklen_t length = sizeof(domain);
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return open() && domain != AF_UNIX;
}

void Channel::finish() { ::shutdown(socket_.get(), SHUT_WR); }

void Channel::hush() {
  deaf_ = true;
  unsent_.clear();
  sent_ = 0;
}

bool Channel::read_some() {
  const std::size_t before = received_.size();
  received_.resize(before + kPiece);
  const ssize_t bytes = ::recv(socket_.get(), received_.data() + before, kPiece, MSG_DONTWAIT);
  const bool alive = bytes > 0 || (bytes < 0 && would_block());
  broken_ |= bytes < 0 && !alive;
  received_.resize(before + (bytes > 0 ? static_cast<std::size_t>(bytes) : 0));
  return alive;
}

bool Channel::next(std::size_t& used, MessageType& type, std::string_view& text) const {
  const std::string_view rest = std::string_view(received_).substr(used);
  if (rest.size() < kHeader) return false;
  std::uint32_t length = 0;
  std::memcpy(&length, rest.data() + 1, sizeof(length));
  if (rest.size() - kHeader < length) return false;
  type = static_cast<MessageType>(rest[0]);
  text = rest.substr(kHeader, length);
  used += kHeader + length;
  return true;
}

std::pair<FileDescriptor, FileDescriptor> connected_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw SystemError("cannot make a socket for a rank", errno);
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace tutti::launch
