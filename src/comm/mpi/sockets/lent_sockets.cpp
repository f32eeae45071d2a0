// Descriptors over sockets of the machine.
#include "comm/mpi/sockets/lent_sockets.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/deadline.hpp"

namespace tutti::mpi {
namespace {

constexpr std::size_t kMostLent = 64;  // sockets; the kernel has 253
constexpr std::chrono::microseconds kBetweenTries{200};
constexpr socklen_t kNameless = offsetof(sockaddr_un, sun_path);

Socket new_local_socket() {
  return Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/** Whether the other end is this user's. */
bool is_own_user(const Socket& socket) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         other.uid == ::geteuid();
}

/** A message of numbers with as many descriptors. */
struct LentParcel {
  explicit LentParcel(std::size_t descriptors) {
    part = {numbers.data(), descriptors * sizeof numbers[0]};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = room.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  LentParcel(const LentParcel&) = delete;
  LentParcel& operator=(const LentParcel&) = delete;
  ~LentParcel() = default;

  std::array<std::int32_t, kMostLent> numbers{};
  iovec part{};
  msghdr header{};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostLent * sizeof(int))> room{};
};

/** Sends it, once others of this user have taken what is under way; 0, or why not. */
int send_once_there_is_room(const Socket& to, const LentParcel& parcel, Deadline& limit) {
  for (;;) {
    const ssize_t sent = ::sendmsg(to.get(), &parcel.header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(parcel.part.iov_len)) return 0;
    const int error = sent < 0 ? errno : EMSGSIZE;
    const bool may_pass = error == ETOOMANYREFS || error == EAGAIN || error == EINTR;
    if (!may_pass || limit.expired()) return error;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace

SocketLender::SocketLender(std::size_t borrowers) : awaited_(borrowers) {
  Socket listener = new_local_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (!listener || ::bind(listener.get(), generic, kNameless) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0 ||
      length - kNameless > address_.name.size()) {
    return;  // the others are told that it is nowhere
  }
  address_.length = static_cast<std::int32_t>(length - kNameless);
  std::copy_n(&address.sun_path[0], address_.length, address_.name.begin());
  listener_ = std::move(listener);
}

void SocketLender::step() {
  while (!all_have_come()) {
    Socket borrower = accept_from(listener_);
    if (!borrower) return;
    if (is_own_user(borrower)) borrowers_.push_back(std::move(borrower));
  }
}

int SocketLender::lend(std::span<const int> sockets, std::span<const std::int32_t> numbers,
                       std::chrono::milliseconds timeout) const noexcept {
  if (!listener_ || !all_have_come()) return ENOTCONN;
  if (sockets.empty()) return 0;
  if (sockets.size() > kMostLent) return EMSGSIZE;
  LentParcel parcel(sockets.size());
  std::copy(numbers.begin(), numbers.end(), parcel.numbers.begin());
  cmsghdr* const control = CMSG_FIRSTHDR(&parcel.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sockets.size_bytes());
  std::memcpy(CMSG_DATA(control), sockets.data(), sockets.size_bytes());
  Deadline limit(timeout);
  for (const Socket& borrower : borrowers_) {
    const int error = send_once_there_is_room(borrower, parcel, limit);
    if (error != 0) return error;
  }
  return 0;
}

int SocketLender::taken(std::chrono::milliseconds timeout) const noexcept {
  Deadline limit(timeout);
  for (const Socket& borrower : borrowers_) {
    std::int32_t error = 0;
    for (;;) {
      const Received received = receive_exactly(borrower, bytes_of(error));
      if (received == Received::closed) return ECONNRESET;
      if (received == Received::all) break;
      if (limit.expired()) return ETIMEDOUT;
      std::this_thread::sleep_for(kBetweenTries);
    }
    if (error != 0) return error;
  }
  return 0;
}

SocketBorrower::SocketBorrower(const LocalAddress& address) {
  if (address.length <= 0) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::copy_n(address.name.begin(), address.length, &to.sun_path[0]);
  const socklen_t length = kNameless + static_cast<socklen_t>(address.length);
  Socket socket = new_local_socket();
  const auto* const generic = reinterpret_cast<const sockaddr*>(&to);
  if (socket && ::connect(socket.get(), generic, length) == 0 && is_own_user(socket)) {
    socket_ = std::move(socket);
  }
}

std::optional<std::vector<LentSocket>> SocketBorrower::step() {
  std::vector<LentSocket> sockets;
  if (!socket_) return sockets;
  LentParcel parcel(kMostLent);
  const ssize_t taken = ::recvmsg(socket_.get(), &parcel.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (taken <= 0) return sockets;
  for (cmsghdr* control = CMSG_FIRSTHDR(&parcel.header); control != nullptr;
       control = CMSG_NXTHDR(&parcel.header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      sockets.push_back({parcel.numbers[i], Socket(fd)});
    }
  }
  const bool are_all = (parcel.header.msg_flags & MSG_CTRUNC) == 0;
  if (!are_all) sockets.clear();
  const std::int32_t error = are_all ? 0 : EMFILE;
  send_all(socket_, bytes_of(error));
  return sockets;
}

}  // namespace tutti::mpi
