// What wakes a server that sleeps: a pipe, which processes of its host open by its number.
#pragma once

#include <cstdint>

#include "base/file_descriptor.hpp"

namespace tutti::ps {

/** The writing end of a Doorbell, as other processes find it. Plain bytes. */
struct DoorbellAddress {
  std::int32_t process = 0;  ///< 0: there is none
  std::int32_t descriptor = -1;
  std::uint64_t device = 0;  ///< and number of the pipe: it is no other one
  std::uint64_t number = 0;
};

/** Is readable from a ring() on until clear(). Nothing of it has a name that could be left behind.
 */
class Doorbell {
 public:
  /** Throws SystemError. */
  Doorbell();

  /** For epoll. */
  int descriptor() const { return out_.get(); }
  DoorbellAddress address() const;
  /** Any thread may call it. */
  void ring() const noexcept;
  void clear() const noexcept;

 private:
  FileDescriptor out_;
  FileDescriptor in_;
};

/** To ring() a Doorbell of a process that lives; none if the system does not let this one. */
FileDescriptor open_doorbell(const DoorbellAddress& address) noexcept;
/** Rings what open_doorbell() has returned. Does not block. */
void ring(const FileDescriptor& doorbell) noexcept;

}  // namespace tutti::ps
