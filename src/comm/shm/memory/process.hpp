// Tells whether another process of this host still runs.
#pragma once

#include <cstdint>

#include "comm/shm/memory/segment.hpp"

namespace tutti::shm {

/** Names one process for good: its number may be used again, the pair not. Plain bytes. */
struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;     ///< in clock ticks since the machine started
  std::uint64_t pid_namespace = 0;  ///< numbers mean something inside one namespace only

  /** This process. */
  static ProcessId self();
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

/** Whether a process is stopped, by a signal or a debugger. False where that cannot be known. */
bool is_stopped(const ProcessId& process);
/** How much of its memory is in swap space; 0 where that cannot be known. */
std::int64_t swapped_bytes(const ProcessId& process);

/** A watch on a process, by a pidfd: unlike kill(pid, 0) it is not fooled by zombies. */
class ProcessWatch {
 public:
  ProcessWatch() = default;
  /** Throws SystemError if this process has no descriptors left. */
  explicit ProcessWatch(const ProcessId& process);

  /**
   * Whether the process has ended. Does not block. Always false for this very process, and where
   * it cannot be known: in another PID namespace, or on a kernel before Linux 5.3.
   */
  bool ended() const;

 private:
  FileDescriptor pidfd_;
  bool was_gone_ = false;
};

}  // namespace tutti::shm
