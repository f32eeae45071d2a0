// In which order the processes of a job have ended.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "base/file_descriptor.hpp"
#include "launch/process/timer.hpp"

namespace tutti::launch {

/**
 * When each of some processes has ended, in an order that does not depend on who was told of it
 * first: on a machine that is busy a parent may hear of its child's end after that of another
 * process, which has ended for it. The kernel appends a process to an epoll's list of what is ready
 * when it ends, and that list is read from its front, however late. Processes that cannot be
 * watched (of another machine, or already ended) have the moment that their parents tell alone.
 * Never blocks.
 */
class EndOrder {
 public:
  /** Of `count` processes. Throws SystemError if there can be no epoll. */
  explicit EndOrder(std::size_t count);

  /** Readable once a process that is watched has ended and look() has not seen it yet. */
  int descriptor() const { return epoll_.get(); }
  /** Watches process `index`, which runs on this machine, if that is possible. */
  void watch(std::size_t index, pid_t process);
  /** Sees who has ended. */
  void look();
  /** Process `index` had ended at this moment, and so had all that ended before it. */
  void ended(std::size_t index, SteadyClock::time_point moment);
  /** The earliest moment at which process `index`, of which that is known, had ended. */
  SteadyClock::time_point moment(std::size_t index) const { return processes_[index].moment; }
  /** Its place among those that were seen to end; who was not comes after all of them. */
  std::size_t place(std::size_t index) const { return processes_[index].place; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  struct Ending {
    FileDescriptor watched;  // until its end was seen
    std::size_t place = kNone;
    SteadyClock::time_point moment = SteadyClock::time_point::max();
  };

  FileDescriptor epoll_;
  std::vector<Ending> processes_;
  std::size_t seen_ = 0;
};

}  // namespace tutti::launch
