// A counter in shared memory that ranks can sleep on.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace tutti::shm {

/**
 * A counter in shared memory, written by one rank and watched by others, who spin first and then
 * sleep in the kernel. The number of sleepers lies elsewhere: the writer reads it after each write,
 * and the counter's own line is on its way to the others by then.
 */
class Signal {
 public:
  Signal(std::atomic<std::uint32_t>& value, std::atomic<std::uint32_t>& sleepers)
      : value_(&value), sleepers_(&sleepers) {}

  std::uint32_t value() const { return value_->load(std::memory_order_seq_cst); }
  /** Whether the counter has reached `target`, across its wrapping around. */
  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value_->load(std::memory_order_acquire) - target) >= 0;
  }

  /** Whether it is `wanted` now, for counters that take every second number. */
  bool is(std::uint32_t wanted) const { return value_->load(std::memory_order_acquire) == wanted; }

  void publish(std::uint32_t next) const {
    value_->store(next, std::memory_order_release);
    // Both sides change the number of sleepers: either a sleeper is seen here, or it comes after
    // this and sees the value. An exchange of the value would do, but needs its line a second time
    // where a watcher has taken it back after the stores just before.
    if (sleepers_->fetch_add(0, std::memory_order_acq_rel) != 0) wake();
  }

  /** One more, for a counter that several ranks write. */
  void bump() const {
    value_->fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_->load(std::memory_order_seq_cst) != 0) wake();
  }

  void wake() const { futex(FUTEX_WAKE, INT_MAX, nullptr); }

  /** Sleeps while the counter is `seen`, at most for `limit`. May return early. */
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) const {
    constexpr std::int64_t kSecond = 1'000'000'000;
    const timespec duration{limit.count() / kSecond, limit.count() % kSecond};
    sleepers_->fetch_add(1, std::memory_order_seq_cst);
    if (value() == seen) futex(FUTEX_WAIT, seen, &duration);
    sleepers_->fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  void futex(int operation, std::uint32_t argument, const timespec* duration) const {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(value_), operation, argument, duration,
              nullptr, 0);
  }

  std::atomic<std::uint32_t>* value_;
  std::atomic<std::uint32_t>* sleepers_;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/** The memory of a Signal. */
struct Flag {
  alignas(128) std::atomic<std::uint32_t> value;
  alignas(64) std::atomic<std::uint32_t> sleepers;

  Signal signal() { return {value, sleepers}; }
  bool reached(std::uint32_t target) { return signal().reached(target); }
  void publish(std::uint32_t next) { signal().publish(next); }
  void wake() { signal().wake(); }
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) { signal().sleep(seen, limit); }
};

}  // namespace tutti::shm
