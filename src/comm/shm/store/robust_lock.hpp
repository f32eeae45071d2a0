// A lock in shared memory that tells who died while holding it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::shm {

/**
 * A robust mutex of the system's among processes, and the rank that holds it. A holder that is
 * killed before it has said who it is leaves what is guarded as it was, and the next one goes on;
 * killed later, even if it only looked, it leaves what nobody can rely on, and everybody is told
 * who it was. Lies in memory that was zeros.
 */
class RobustLock {
 public:
  /** By whoever made the memory, once. Throws SystemError. */
  void initialise();

  /** While it lives, the calling thread holds the lock. */
  class Hold {
   public:
    /**
     * Blocks, at most for `timeout`. Throws PeerLost naming the rank that has been killed in the
     * middle of a change, or that has stopped there; DeadlineExceeded if it cannot be said who
     * holds it.
     */
    Hold(RobustLock& lock, int rank, std::chrono::milliseconds timeout);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

   private:
    RobustLock& lock_;
  };

 private:
  pthread_mutex_t mutex_;
  std::atomic<std::int32_t> changing_;  // the rank that holds it, and one more; 0 if nobody does
};

}  // namespace tutti::shm
