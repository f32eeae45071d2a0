// A communicator of NCCL that does not block: calls to it, its failures, its end.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "base/waiter.hpp"
#include "comm/nccl/library.hpp"
#include "tutti/transport.hpp"

namespace tutti::nccl {

/** Not so if NCCL has not finished yet. */
inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

/**
 * Owns an ncclComm_t. NCCL answers "in progress" where it would block, and takes no other call
 * until it is done: call() waits for that with an eye on the other ranks, over `cpu_transport`.
 * Calls are safe from several threads; they run one after the other.
 */
class Comm {
 public:
  /** Joins the `cpu_transport->size()` ranks that hold `id`. Blocks until all have come. */
  Comm(std::shared_ptr<const Library> library, Transport* cpu_transport, const ncclUniqueId& id);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  /** Lets NCCL end in order if it can at once, or else aborts. Calls nothing of `cpu_transport`. */
  ~Comm();

  const Library& library() const { return *library_; }

  /**
   * Runs call(ncclComm_t), which returns an ncclResult_t, and waits until NCCL has done with it.
   * `name` is for messages. PeerLost if a rank is lost meanwhile or if its loss is what the error
   * comes from; Error with NCCL's own words otherwise.
   */
  template <class Call>
  void call(const char* name, const Call& call) {
    const std::lock_guard lock(mutex_);
    require_alive();
    finish(name, comm_, call(comm_));
  }

  /** Runs several calls as one: calls(ncclComm_t) returns the first that is_failure(). */
  template <class Calls>
  void group(const char* name, const Calls& calls) {
    call(name, [&](ncclComm_t comm) { return in_group([&] { return calls(comm); }); });
  }
  /** The same inside of a call(). */
  template <class Calls>
  ncclResult_t in_group(const Calls& calls) {
    const ncclResult_t start = library_->GroupStart();
    if (start != ncclSuccess) return start;
    const ncclResult_t inside = calls();
    const ncclResult_t end = library_->GroupEnd();  // whatever happened inside
    return is_failure(inside) ? inside : end;
  }

  /** The part among the ranks of equal `color`; null for a negative one. `cpu_transport` connects
   * them. */
  std::unique_ptr<Comm> split(int color, int key, Transport* cpu_transport);

  /** Throws what work on the GPU has failed with. Does nothing while another call runs. */
  void poll();
  /** Ends all work under way; every further call throws. */
  void cancel() noexcept;

  /** Gives memory of ncclMemAlloc back. In a forked child, which owns nothing, it does not. */
  void release(void* data) noexcept;
  /** What registering memory gives back; null if NCCL would not, which costs speed alone. */
  void* enroll(void* data, std::size_t bytes);
  /** For memory that enroll() took, if the communicator is still there. */
  void dismiss(void* registration) noexcept;

 private:
  Comm(std::shared_ptr<const Library> library, Transport* cpu_transport, ncclComm_t comm)
      : library_(std::move(library)), cpu_transport_(cpu_transport), comm_(comm) {}

  void require_alive() const;
  /** Looks after the other ranks, too. Throws PeerLost as Transport::pulse() does. */
  void pause(Waiter& waiter);
  void finish(const char* name, ncclComm_t comm, ncclResult_t result);
  [[noreturn]] void fail(const char* name, ncclComm_t comm, ncclResult_t result);
  bool ends_in_order() noexcept;

  std::shared_ptr<const Library> library_;
  Transport* cpu_transport_;
  std::mutex mutex_;
  const pid_t process_ = ::getpid();  // a forked child that inherits this object owns nothing
  std::atomic<bool> aborted_ = false;
  ncclComm_t comm_ = nullptr;
  ncclComm_t part_ = nullptr;  // of a split under way: NCCL may write it until comm_ is aborted
};

/** What all communicators ask of NCCL: not to block. */
ncclConfig_t make_config();

}  // namespace tutti::nccl
