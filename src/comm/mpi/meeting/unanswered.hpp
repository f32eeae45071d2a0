// Whom this process calls in vain: Open MPI waits without an end for a connection that nobody
// answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/**
 * The TCP connections that this process has begun, as the kernel lists them. Open MPI's are among
 * them, and cannot be told from those that the program itself begins to a port from 1024 on: one of
 * these that has neither an answer nor a refusal for kPatience, and that the program does not end
 * within a second, is taken for one of Open MPI's. (That it has begun before the first look tells
 * nothing: so has Open MPI's, where the program has sent messages before.)
 */
class UnansweredCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /** After the kernel has asked three times: at once, after one second and after three. */
  static constexpr std::chrono::milliseconds kPatience{4000};

  /**
   * Looks who is being called, and who has answered. A call that has ended is forgotten, unless it
   * had no answer for a second: where nobody has an address, the kernel gives up after three, of
   * which Open MPI prints a warning, and waits on. (Sooner where another process has called there
   * just before: such a call is not seen here, and the deadline ends the wait.) Throws
   * CommunicationError naming an address that has been called for kPatience in vain, and the
   * interface by which it was. `now` never goes back.
   */
  void look(Clock::time_point now = Clock::now());

 private:
  struct Call {
    Clock::time_point begun;
    Address from = 0;
    Address to = 0;
    bool asked_again = false;  // by the kernel, a second after the call has begun
  };
  std::map<std::uint64_t, Call> calls_;  // not answered as far as is known, by sockets' numbers
};

}  // namespace tutti::mpi
