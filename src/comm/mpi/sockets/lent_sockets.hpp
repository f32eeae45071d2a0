// Sockets that all ranks of a host hold: their connections end when the last of these processes
// has.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/** Where a process of this machine listens: a name that the kernel has chosen, and that is gone
 * with the process. Plain bytes. */
struct LocalAddress {
  std::int32_t length = 0;  ///< 0: nowhere
  std::array<char, 16> name{};
};

/** A socket, and a number that its lender gives it. */
struct LentSocket {
  std::int32_t number;
  Socket socket;
};

/** Gives other processes of the same user on this machine copies of sockets. */
class SocketLender {
 public:
  /** To so many. */
  explicit SocketLender(std::size_t borrowers);
  LocalAddress address() const { return address_; }
  /** Lets them in. */
  void step();
  /** Or nobody can. */
  bool all_have_come() const { return !listener_ || borrowers_.size() == awaited_; }
  /** Gives all who are awaited copies of `sockets`, which have `numbers`; nobody may count on them
   * if that returns another error than 0, or taken() does. The kernel limits how many are under way
   * to all processes of a user: waits `timeout` at most until others are taken. */
  int lend(std::span<const int> sockets, std::span<const std::int32_t> numbers,
           std::chrono::milliseconds timeout) const noexcept;
  /** After that: 0 once all who were lent some have them, or why one has not, who may have too few
   * descriptors. Waits `timeout` at most. */
  int taken(std::chrono::milliseconds timeout) const noexcept;

 private:
  std::size_t awaited_;
  Socket listener_;
  LocalAddress address_;
  std::vector<Socket> borrowers_;
};

/** The other side. */
class SocketBorrower {
 public:
  explicit SocketBorrower(const LocalAddress& address);
  /** Nothing as long as they may come; none if they will not, or not all can be had. Tells the
   * lender. */
  std::optional<std::vector<LentSocket>> step();

 private:
  Socket socket_;
};

}  // namespace tutti::mpi
