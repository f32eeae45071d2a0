// Which threads are the library's own, and when they run.
#include "base/thread.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tutti {
namespace {

bool& is_own() {
  thread_local bool is_own = false;
  return is_own;
}

/** As Linux has it; the C library may not. */
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  ///< of the policy of all: the time of a turn, in nanoseconds
  std::uint64_t deadline;
  std::uint64_t period;
};

constexpr std::uint64_t kTurn = 100'000;    // the least there is
constexpr std::uint64_t kNotInherited = 1;  // SCHED_FLAG_RESET_ON_FORK

}  // namespace

bool is_own_thread() { return is_own(); }

void note_own_thread() { is_own() = true; }

void run_soon() noexcept {
  constexpr int kThisThread = 0;
  SchedulingAttributes attributes{};
  if (::syscall(SYS_sched_getattr, kThisThread, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.flags |= kNotInherited;
  attributes.runtime = kTurn;
  ::syscall(SYS_sched_setattr, kThisThread, &attributes, 0);
}

}  // namespace tutti
