// A communicator of NCCL: calls to it, its failures, its end.
#pragma once

#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/waiter.hpp"
#include "comm/nccl/handle.hpp"
#include "comm/nccl/library.hpp"
#include "comm/nccl/watchdog.hpp"
#include "tutti/transport.hpp"

namespace tutti::nccl {

/** Not so if NCCL has not finished yet. */
inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

/**
 * Owns an ncclComm_t, one whose calls block: NCCL makes a thread for every launch of one that does
 * not. A launch seldom waits for other ranks, and it runs on the caller's thread, while a watchdog
 * looks after the others, over `cpu_transport`; what always waits for them runs on a thread of its
 * own, while the caller looks, and so does all where no other thread may use that. Either way, if a
 * rank is lost NCCL is aborted, and the call returns. Calls are safe from several threads; they run
 * one after the other.
 */
class Comm {
 public:
  /** Joins the `cpu_transport->size()` ranks that hold `id`. Blocks until all have come. */
  Comm(std::shared_ptr<const Library> library, Transport* cpu_transport, const ncclUniqueId& id,
       OnGpu on_gpu);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  /** What was launched has ended, or cancel() was called. See Endings for who waits for what. Calls
   * nothing of `cpu_transport`. */
  ~Comm();

  const Library& library() const { return *handle_->library; }

  /**
   * Runs call(ncclComm_t), which returns an ncclResult_t. `name` is for messages. PeerLost if a
   * rank is lost meanwhile or if its loss is what the error comes from; Error with NCCL's own words
   * otherwise.
   */
  template <class Call>
  void call(const char* name, const Call& call) {
    const std::lock_guard lock(handle_->mutex);
    require_alive();
    finish(name, looked_after([&] { return call(handle_->comm); }));
  }

  /** Runs several calls as one: calls(ncclComm_t) returns the first that is_failure(). */
  template <class Calls>
  void group(const char* name, const Calls& calls) {
    call(name, [&](ncclComm_t comm) { return in_group([&] { return calls(comm); }); });
  }
  /** The same inside of a call(). */
  template <class Calls>
  ncclResult_t in_group(const Calls& calls) {
    const ncclResult_t start = library().GroupStart();
    if (start != ncclSuccess) return start;
    const ncclResult_t inside = calls();
    const ncclResult_t end = library().GroupEnd();  // whatever happened inside
    return is_failure(inside) ? inside : end;
  }

  /** The part among the ranks of equal `color`; null for a negative one. `cpu_transport` connects
   * them. */
  std::unique_ptr<Comm> split(int color, int key, Transport* cpu_transport);

  /** Throws what work on the GPU has failed with, and that it was aborted. */
  void poll();
  /** Ends all work under way; every further call throws. Does not wait for that end. */
  void cancel() noexcept;

  /** Gives memory of ncclMemAlloc back, at the latest when the communicator has ended. In a forked
   * child, which owns nothing, it does not. */
  void release(void* data) noexcept;
  /** What registering memory gives back; null if NCCL would not, which costs speed alone. */
  void* enroll(void* data, std::size_t bytes);
  /** For memory that enroll() took, if the communicator is still there. */
  void dismiss(void* registration) noexcept;

 private:
  /** Takes over a communicator that is there. */
  Comm(std::shared_ptr<Handle> handle, Transport* cpu_transport);

  void require_alive() const;
  /** Looks after the other ranks, too. Throws PeerLost as Transport::pulse() does. */
  void pause(Waiter& waiter);
  /** Runs call(Handle&) on a thread of its own, which may go on after this has thrown. */
  template <class Call>
  void call_apart(const char* name, const Call& call);
  /** Runs a call that ends when NCCL is aborted, and looks after the other ranks meanwhile. */
  ncclResult_t looked_after(const std::function<ncclResult_t()>& call);
  void finish(const char* name, ncclResult_t result);
  [[noreturn]] void fail(const char* name, ncclResult_t result);
  /** For the watchdog. */
  void look_after_others(std::chrono::milliseconds waited) noexcept;
  std::unique_ptr<Watchdog> make_watchdog();

  std::shared_ptr<Handle> handle_;
  Transport* cpu_transport_;
  const pid_t process_ = ::getpid();  // a forked child that inherits this object owns nothing
  mutable std::mutex lost_mutex_;
  std::exception_ptr lost_;  // what the watchdog has found
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace tutti::nccl
