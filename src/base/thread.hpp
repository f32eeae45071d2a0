// Threads of the library's own.
#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/finally.hpp"
#include "tutti/error.hpp"

namespace tutti {

/** Whether the calling thread is one of start_thread(), which works while the program does. */
bool is_own_thread();
/** From here on it is. */
void note_own_thread();

/** Asks the kernel to give the calling thread a core soon after it wakes up, for a short time each
 * (Linux 6.12 and later): threads that compute keep theirs for some milliseconds otherwise. */
void run_soon() noexcept;

/** A thread that leaves signals to the threads of the program, but for those of its own mistakes.
 * Throws SystemError that there is none for `what`. */
template <class Body>
std::thread start_thread(const char* what, Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) ::sigdelset(&all, own);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const Finally restore([&before] { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  try {
    return std::thread([body = std::move(body)]() mutable {
      note_own_thread();
      body();
    });
  } catch (const std::system_error& error) {
    throw SystemError(std::string("cannot start a thread for ") + what, error.code().value());
  }
}

}  // namespace tutti
