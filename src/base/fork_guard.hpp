// Tells a process from its forked children.
#pragma once

#include <cstdint>

namespace tutti {

/**
 * Remembers the process that made it, and whether it is still there: a look at memory, where
 * getpid() would enter the kernel at every call.
 */
class ForkGuard {
 public:
  ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

  /** Whether this is a forked child of the process that made the object. */
  bool in_child() const;

 private:
  std::int32_t process_;
  volatile std::uint8_t* mark_;  // in a page that a child gets as zeros; null if there is none
};

}  // namespace tutti
