// Waits for another thread's call on a worker, as long as nobody interrupts the wait.
#pragma once

#include <chrono>
#include <mutex>

#include "tutti/interrupt.hpp"

namespace tutti::ps {

/** Locks; throws what an InterruptCheck throws while it waits. */
template <class Lock>
Lock lock_patiently(typename Lock::mutex_type& mutex) {
  Lock lock(mutex, std::try_to_lock);
  // ThreadSanitizer knows of no waits by another clock.
  const auto next_look = [] {
    return std::chrono::system_clock::now() + InterruptCheck::kInterval;
  };
  while (!lock && !lock.try_lock_until(next_look())) InterruptCheck::poll();
  return lock;
}

}  // namespace tutti::ps
