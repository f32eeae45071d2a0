// Takes the lock, or finds out who has it.
#include "comm/shm/store/robust_lock.hpp"

#include <cerrno>
#include <string>

#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/failure.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

// It is held for a microsecond or so, unless memory is added. Whoever holds it may need this core.
constexpr WaitPolicy kForTheHolder{.spin = std::chrono::microseconds(100), .interruptible = false};

void check(int error, const char* what) {
  if (error != 0) throw SystemError(what, error);
}

}  // namespace

void RobustLock::initialise() {
  constexpr const char* kFailed = "cannot make a lock in shared memory";
  pthread_mutexattr_t attributes;
  check(::pthread_mutexattr_init(&attributes), kFailed);
  int error = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (error == 0) error = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (error == 0) error = ::pthread_mutex_init(&mutex_, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  check(error, kFailed);
}

RobustLock::Hold::Hold(RobustLock& lock, int rank, std::chrono::milliseconds timeout)
    : lock_(lock) {
  // Not the system's own wait for a lock: its deadline goes by a clock that somebody may set.
  for (Waiter waiter(kForTheHolder, timeout);; waiter.pause()) {
    const int code = ::pthread_mutex_trylock(&lock.mutex_);
    const int holder = lock.changing_.load(std::memory_order_relaxed) - 1;
    if (code == 0 || code == EOWNERDEAD) {
      if (code == EOWNERDEAD) ::pthread_mutex_consistent(&lock.mutex_);
      if (holder < 0) break;
      // Its number stays. (A mutex that is not recoverable glibc 2.36 takes for locked later on.)
      ::pthread_mutex_unlock(&lock.mutex_);
      throw ProcessesEnded({holder},
                           "its process has ended in the middle of a change of the store");
    }
    if (code != EBUSY) throw SystemError("cannot take a lock in shared memory", code);
    if (!waiter.expired()) continue;
    const std::string within = " within " + seconds_text(timeout);
    if (holder < 0) throw DeadlineExceeded("the store's lock was not free" + within);
    throw PeerLost({holder}, "did not end a change of the store" + within);
  }
  lock.changing_.store(rank + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

RobustLock::Hold::~Hold() {
  lock_.changing_.store(0, std::memory_order_release);
  ::pthread_mutex_unlock(&lock_.mutex_);
}

}  // namespace tutti::shm
