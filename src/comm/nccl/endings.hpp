// The end of communicators of NCCL, which may wait for other ranks for ever.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "comm/nccl/handle.hpp"

namespace tutti::nccl {

/**
 * Ends communicators, each on a thread of its own. ncclCommDestroy waits until the other ranks of
 * the host end theirs, too, and ncclCommAbort for those, and for kernels of other communicators:
 * neither has a deadline. So no rank waits for them as long as it has another communicator, which a
 * peer may end first; the last one of a process waits for all ends, but not for long. A thread that
 * is still stuck then is left alone.
 */
class Endings {
 public:
  static Endings& of_process();

  /** One more communicator lives. */
  void begin();
  /** One less, whose end was started. Waits for what was started if it was the last one. */
  void leave();

  /** Starts to end a communicator whose work is done. */
  void destroy(std::shared_ptr<Handle> handle);
  /**
   * Has all work of a communicator end and all calls to it return, the one to
   * ncclCommInitRankConfig included, and then ends it. Returns when NCCL has been told.
   *
   * ncclCommAbort tells it at once, and frees what the call under way may still use. Inside of a
   * group it does that at the end of the group, here as soon as the call has returned.
   */
  void abort(std::shared_ptr<Handle> handle);

 private:
  template <class Work>
  void start(const Work& work);

  std::mutex mutex_;
  std::condition_variable changed_;
  int alive_ = 0;
  int under_way_ = 0;
};

}  // namespace tutti::nccl
