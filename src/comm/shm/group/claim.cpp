// Binds the socket of a ticket, and asks whose it is.
#include "comm/shm/group/claim.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/log.hpp"
#include "comm/ticket_name.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** A stream: the kernel tells who listens on one, but not who holds a datagram socket. */
FileDescriptor make_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw SystemError("cannot make a socket", errno);
  return fd;
}

}  // namespace

ClaimAddress::ClaimAddress(const UniqueId& id) {
  const std::string name = ticket_name(id, "claim");
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path + 1, name.data(), name.size());  // a leading 0 makes it abstract
  bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::optional<FileDescriptor> ClaimAddress::claim() const {
  FileDescriptor fd = make_socket();
  if (::bind(fd.get(), address(), bytes_) == 0) {
    if (::listen(fd.get(), SOMAXCONN) != 0) throw SystemError("cannot listen on a socket", errno);
    return fd;
  }
  if (errno != EADDRINUSE) throw SystemError("cannot bind a socket", errno);
  if (claimed()) return std::nullopt;
  log(LogLevel::warn,
      "another user, or a child of a rank that has ended, holds the socket that would mark the "
      "UniqueId as used");
  return FileDescriptor();
}

bool ClaimAddress::claimed() const {
  const FileDescriptor fd = make_socket();
  if (::connect(fd.get(), address(), bytes_) != 0) {
    // Its queue is full, as a stranger may have made it; the system does not say whose it is. But
    // the address is a secret until rank 0 binds it: so the ticket has been used, in any case.
    return errno == EAGAIN;
  }
  ucred holder{};
  socklen_t size = sizeof(holder);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0) {
    throw SystemError("cannot ask whose a socket is", errno);
  }
  // Children of a rank 0 that has ended may have its socket still.
  const bool has_ended = holder.pid > 0 && ::kill(holder.pid, 0) != 0 && errno == ESRCH;
  return holder.uid == ::geteuid() && !has_ended;
}

}  // namespace tutti::shm
