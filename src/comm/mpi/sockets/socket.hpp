// TCP sockets between the processes of a job: non-blocking, and not inherited by forked children.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::mpi {

/**
 * Owns a socket. Move-only. It is closed in programs that this process starts and in forked
 * children too, so that the connection ends with the process that made it: a child's copy of this
 * is of no use, and its number may be another file's by then.
 */
class Socket {
 public:
  Socket() = default;
  /** Takes a descriptor over; nothing if it is negative. */
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(forks_, other.forks_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /** Whether there is one, and this is not a forked child of the process that has it. */
  bool is_open() const noexcept;

 private:
  int fd_ = -1;
  unsigned forks_ = 0;  ///< that had led to the process which has it
};

/** An IPv4 address, in network order. */
using Address = std::uint32_t;

/** Equal for processes that share a network stack: those of one machine, outside of containers.
 * `machine`: the name of this process's machine, see own_place(). 0 if that cannot be told. */
std::uint64_t network_id(std::string_view machine);
Address loopback_address();

/** Listens on all addresses, at a `port` of the kernel's choice. Throws SystemError. */
Socket listen_anywhere(std::uint16_t& port);
/** The next connection that waits at `listener`; nothing if there is none, or as errno says. */
Socket accept_from(const Socket& listener);
/** Begins to connect; nothing if that fails at once, as errno says. */
Socket start_connecting(Address address, std::uint16_t port);

/** Whether `error` says that this process or the machine has too little of something. */
bool is_shortage(int error);
/** What it says. */
std::string error_text(int error);

/** A value of plain bytes as what is sent or received. */
template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/** failed: as errno says. */
enum class Connecting : std::uint8_t { under_way, done, failed };
Connecting connecting_state(const Socket& socket);

/** Seconds, and as many signs of life, until a host that is off counts as lost. */
inline constexpr int kProbes = 8;
/** Has the kernel ask the other end for a sign of life once nothing has travelled for `quiet`, and
 * then once a second, and end the connection after kProbes of these without any. Whether it can. */
bool keep_alive(const Socket& socket, std::chrono::seconds quiet = std::chrono::seconds(1));
/** Has the kernel ask the other end for a sign of life every half a minute while nothing travels:
 * a firewall would forget the connection. Whether it can. */
bool keep_open(const Socket& socket);
/** Has short pieces sent at once, or not before what was sent is confirmed. Whether it can. */
bool send_at_once(const Socket& socket, bool whether = true);
/** Has the kernel confirm now what has come, and from here on what is read, until something is
 * sent. Whether it can. */
bool confirm_at_once(const Socket& socket);
/** Has the kernel confirm now what has come, and along with what is sent what comes from here on.
 */
void confirm_now(const Socket& socket);
/** While fewer than `bytes` bytes are unread the kernel confirms what makes more than a segment as
 * it comes, not when it is read, and poll() does not tell of it. A new connection has 1. */
void set_low_water(const Socket& socket, int bytes);
/** Bytes that the kernel sends in one segment; 0 if nobody knows. */
std::int64_t segment_of(const Socket& socket);
/** Whether the kernel has taken something that it has not sent yet, as far as is known. */
bool has_unsent(const Socket& socket);
/** Has the kernel take no more while there are `bytes` bytes that it has not sent yet. Whether it
 * can. */
bool limit_unsent(const Socket& socket, int bytes);
/** Whether the kernel spreads what is sent over time, by its estimate of what the path takes. */
bool paces(const Socket& socket);
/** Has it send as much as has room at the other end, and on the way. Whether it can. */
bool do_not_pace(const Socket& socket);
/** Whether what a call has just failed with, by errno, passes: there is nothing, or no room, yet.
 */
bool is_to_be_tried_again();
/** What the kernel knows of a connection. */
struct ConnectionState {
  bool ended = false;              ///< by the other end, whose kernel has said so
  bool given_up = false;           ///< since that kernel did not answer
  std::uint64_t acknowledged = 0;  ///< bytes that it has, of what was sent
  std::uint32_t silence = 0;       ///< milliseconds since it was last heard of
};
ConnectionState state_of(const Socket& socket);

/** Sends all of `data` unless the connection's buffer is full or it has ended. */
bool send_all(const Socket& socket, std::span<const std::byte> data) noexcept;
/** Bytes that have come and that nobody has read; 0 if that cannot be told. */
std::int64_t unread(const Socket& socket) noexcept;
/** Drops what has come, and not what comes meanwhile, which may be without an end; nothing in a
 * forked child. */
void discard_input(const Socket& socket) noexcept;
/** Takes exactly out.size() bytes once so many have come. closed: no more will, be it that this
 * kernel has given up the other end, of which state_of() tells. */
enum class Received : std::uint8_t { all, too_few, closed };
Received receive_exactly(const Socket& socket, std::span<std::byte> out);

}  // namespace tutti::mpi
