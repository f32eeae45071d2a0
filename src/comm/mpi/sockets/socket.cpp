// Calls of the kernel for TCP, and a list of the sockets that a forked child closes.
#include "comm/mpi/sockets/socket.hpp"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <linux/tcp.h>  // whose tcp_info is longer than that of netinet/tcp.h
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "base/system.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

/** The open sockets of this process. A child's copies are closed at the fork: otherwise a child
 * that outlives its parent would keep the connections. */
class OpenSockets {
 public:
  /** Never destroyed: sockets may outlive it otherwise. */
  static OpenSockets& instance() {
    static OpenSockets& only = *new OpenSockets;
    return only;
  }

  void add(int fd) {
    const std::lock_guard lock(mutex_);
    open_.insert(fd);
  }
  void remove(int fd) {
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
  }
  /** That have led to this process since it had its first socket. */
  unsigned forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

 private:
  OpenSockets() {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().close_all(); });
  }
  void close_all() {
    for (const int fd : open_) ::close(fd);
    open_.clear();
    forks_.fetch_add(1, std::memory_order_relaxed);
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> open_;
  std::atomic<unsigned> forks_ = 0;
};

sockaddr_in socket_address(Address address, std::uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = address;
  return to;
}

Socket new_socket() {
  return Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/** Whether it has connected to itself: to a port of this machine at which nobody listens, and which
 * the kernel has chosen for this end, too. */
bool is_own_other_end(const Socket& socket) {
  sockaddr_in own{};
  sockaddr_in other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
         own.sin_port == other.sin_port && own.sin_addr.s_addr == other.sin_addr.s_addr;
}

bool set_option(const Socket& socket, int level, int option, int value) {
  return ::setsockopt(socket.get(), level, option, &value, sizeof value) == 0;
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd < 0) return;
  OpenSockets::instance().add(fd);
  forks_ = OpenSockets::instance().forks();
}

Socket::~Socket() {
  if (!is_open()) return;
  OpenSockets::instance().remove(fd_);
  ::close(fd_);
}

bool Socket::is_open() const noexcept {
  return fd_ >= 0 && forks_ == OpenSockets::instance().forks();
}

std::uint64_t network_id(std::string_view machine) {
  const std::string boot = boot_id();
  struct stat network {};
  if (boot.empty() || ::stat("/proc/self/ns/net", &network) != 0) return 0;
  return hash_text(boot + " " + std::string(machine) + " " + std::to_string(network.st_ino));
}

Address loopback_address() { return htonl(INADDR_LOOPBACK); }

Socket listen_anywhere(std::uint16_t& port) {
  Socket listener = new_socket();
  const sockaddr_in any = socket_address(INADDR_ANY, 0);
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw SystemError("cannot listen for connections", errno);
  }
  port = ntohs(bound.sin_port);
  return listener;
}

Socket accept_from(const Socket& listener) {
  return Socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Socket start_connecting(Address address, std::uint16_t port) {
  Socket socket = new_socket();
  const sockaddr_in to = socket_address(address, port);
  // The kernel may choose a port at which a server is still to listen, for this end or even for
  // both (see is_own_other_end()): the server gets it nevertheless.
  if (socket && !set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1)) return {};
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS) {
    return {};
  }
  return socket;
}

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
         error == EADDRNOTAVAIL;
}

std::string error_text(int error) {
  const char* const limit = error == EMFILE ? " (ulimit -n)" : "";
  return std::system_category().message(error) + limit;
}

Connecting connecting_state(const Socket& socket) {
  pollfd entry{socket.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) return Connecting::under_way;
  int error = 0;
  socklen_t length = sizeof error;
  const int code = ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (code == 0 && error == 0 && !is_own_other_end(socket)) return Connecting::done;
  errno = code != 0 ? errno : (error != 0 ? error : ECONNREFUSED);
  return Connecting::failed;
}

bool keep_alive(const Socket& socket, std::chrono::seconds quiet) {
  const auto idle = static_cast<int>(quiet.count());
  // TCP_USER_TIMEOUT is for when bytes are under way, but also ends what has been silent for so
  // long when the first question is not answered.
  const int most = (idle - 1 + kProbes) * 1000;
  return set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1) &&
         set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, idle) &&
         set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1) &&
         set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes) &&
         set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, most) && send_at_once(socket);
}

bool keep_open(const Socket& socket) {
  constexpr int kSeconds = 30;
  return set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1) &&
         set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kSeconds) &&
         set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kSeconds);
}

bool send_at_once(const Socket& socket, bool whether) {
  return set_option(socket, IPPROTO_TCP, TCP_NODELAY, whether ? 1 : 0);
}

bool confirm_at_once(const Socket& socket) {
  return set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 1);
}

void confirm_now(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 1);
  set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 0);
}

void set_low_water(const Socket& socket, int bytes) {
  set_option(socket, SOL_SOCKET, SO_RCVLOWAT, bytes);
}

std::int64_t segment_of(const Socket& socket) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  const int code = ::getsockopt(socket.get(), IPPROTO_TCP, TCP_MAXSEG, &bytes, &length);
  return code == 0 ? bytes : 0;
}

bool has_unsent(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.get(), SIOCOUTQNSD, &bytes) != 0 || bytes > 0;
}

bool limit_unsent(const Socket& socket, int bytes) {
  return set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes);
}

bool paces(const Socket& socket) {
  std::array<char, 16> control{};  // of congestion
  socklen_t length = control.size() - 1;
  const int code = ::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, control.data(), &length);
  return code == 0 && std::string_view(control.data()).starts_with("bbr");
}

bool do_not_pace(const Socket& socket) {
  constexpr std::string_view kControl = "reno";  // every kernel has it
  return ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kControl.data(),
                      static_cast<socklen_t>(kControl.size())) == 0;
}

bool is_to_be_tried_again() {
  return errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM;
}

ConnectionState state_of(const Socket& socket) {
  constexpr std::uint8_t kClosed = 7;  // TCP_CLOSE and TCP_CLOSE_WAIT, which linux/tcp.h lacks
  constexpr std::uint8_t kCloseWait = 8;
  constexpr int kUnanswered = 3;  // probes: one may be under way when the other end says it is gone
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const bool closed = info.tcpi_state == kClosed;
  const bool given_up = closed && info.tcpi_probes + info.tcpi_retransmits >= kUnanswered;
  return {(closed && !given_up) || info.tcpi_state == kCloseWait, given_up, info.tcpi_bytes_acked,
          info.tcpi_last_ack_recv};
}

bool send_all(const Socket& socket, std::span<const std::byte> data) noexcept {
  return ::send(socket.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         std::ssize(data);
}

std::int64_t unread(const Socket& socket) noexcept {
  int bytes = 0;
  return socket.is_open() && ::ioctl(socket.get(), SIOCINQ, &bytes) == 0 ? bytes : 0;
}

void discard_input(const Socket& socket) noexcept {
  std::int64_t left = unread(socket);
  std::array<std::byte, 4096> dropped;
  while (left > 0) {
    const std::size_t most = std::min(static_cast<std::size_t>(left), dropped.size());
    const ssize_t come = ::recv(socket.get(), dropped.data(), most, MSG_DONTWAIT);
    if (come <= 0) return;
    left -= come;
  }
}

Received receive_exactly(const Socket& socket, std::span<std::byte> out) {
  const ssize_t there = ::recv(socket.get(), out.data(), out.size(), MSG_PEEK | MSG_DONTWAIT);
  if (there == 0 || (there < 0 && errno != EAGAIN && errno != EINTR)) return Received::closed;
  if (there < std::ssize(out)) return Received::too_few;
  return ::recv(socket.get(), out.data(), out.size(), MSG_DONTWAIT) == std::ssize(out)
             ? Received::all
             : Received::closed;
}

}  // namespace tutti::mpi
