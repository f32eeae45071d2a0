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

/** Written by one rank, watched by others, who spin first and then sleep in the kernel. */
struct alignas(128) Flag {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;

  /** Whether the counter has reached `target`, across its wrapping around. */
  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }

  void publish(std::uint32_t next) {
    // Sequentially consistent: a sleeper either sees the value or is seen here.
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }

  void wake() { futex(FUTEX_WAKE, INT_MAX, nullptr); }

  /** Sleeps while the counter is `seen`, at most for `limit`. May return early. */
  void sleep(std::uint32_t seen, std::chrono::milliseconds limit) {
    const timespec duration{limit.count() / 1000, (limit.count() % 1000) * 1000000};
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (value.load(std::memory_order_seq_cst) == seen) futex(FUTEX_WAIT, seen, &duration);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  void futex(int operation, std::uint32_t argument, const timespec* duration) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&value), operation, argument, duration,
              nullptr, 0);
  }
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/** Tells the processor that this is a spinning wait. */
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti::shm
