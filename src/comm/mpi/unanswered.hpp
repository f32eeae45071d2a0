// Whom this process calls in vain: Open MPI waits without an end for a connection that nobody
// answers.
#pragma once

#include <chrono>
#include <map>

#include "comm/mpi/socket.hpp"

namespace tutti::mpi {

/** The TCP connections that this process has begun, Open MPI's among them, as the kernel lists
 * them. */
class UnansweredCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /** After the kernel has asked three times: at once, after one second and after three. */
  static constexpr std::chrono::milliseconds kPatience{4000};

  /**
   * Looks who has been called since the last look, and who has answered. Throws
   * CommunicationError naming an address that has been called for kPatience in vain, and the
   * interface by which it was. `now` never goes back.
   */
  void look(Clock::time_point now = Clock::now());

 private:
  struct Call {
    Clock::time_point begun;
    Address from = 0;
  };
  std::map<Address, Call> calls_;  // by who is called; of those, who have not answered
};

}  // namespace tutti::mpi
