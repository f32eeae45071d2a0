// What wakes a server that sleeps: a counter of the kernel's, or a pipe, which processes of its
// host open by their numbers.
#pragma once

#include <array>
#include <cstdint>

#include "base/file_descriptor.hpp"

namespace tutti::ps {

/** The writing ends of a Doorbell, as other processes find them. Plain bytes. */
struct DoorbellAddress {
  std::int32_t process = 0;  ///< 0: there is none
  std::int32_t counter = -1;
  std::int32_t pipe = -1;
  std::uint64_t device = 0;  ///< and number of the pipe: it is no other one
  std::uint64_t number = 0;
};

/**
 * Is readable from a ring() on until clear(). Nothing of it has a name that could be left behind.
 * The counter (an eventfd) takes least time, but has no path: only who might trace this process can
 * have it. The pipe is for those who may not.
 */
class Doorbell {
 public:
  /** Throws SystemError. */
  Doorbell();

  /** For epoll: either may be readable. */
  std::array<int, 2> descriptors() const { return {counter_.get(), out_.get()}; }
  DoorbellAddress address() const;
  /** Any thread may call it. */
  void ring() const noexcept;
  void clear() const noexcept;

 private:
  FileDescriptor counter_;  // goes last: see open_doorbell()
  FileDescriptor out_;      // of the pipe
  FileDescriptor in_;
};

/** To ring() a Doorbell of a process that lives; none if the system does not let this one. */
FileDescriptor open_doorbell(const DoorbellAddress& address) noexcept;
/** Its pipe, for who cannot have the counter. */
FileDescriptor open_doorbell_pipe(const DoorbellAddress& address) noexcept;
/** Rings what one of those has returned. Does not block. */
void ring(const FileDescriptor& doorbell) noexcept;

}  // namespace tutti::ps
