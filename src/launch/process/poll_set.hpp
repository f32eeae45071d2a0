// Waits for descriptors.
#pragma once

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::launch {

/** Descriptors that one poll() waits for. */
class PollSet {
 public:
  /** Which one that is for happened(). Of one that is closed (-1) nothing is awaited: poll() takes
   * no more entries than a process may have descriptors, whatever is in them. */
  std::size_t add(int descriptor, int events) {
    if (descriptor < 0) return kNone;
    sources_.push_back({descriptor, static_cast<short>(events), 0});
    return sources_.size() - 1;
  }
  /** Waits for so many milliseconds, or a signal; -1: for as long as it takes. Throws SystemError.
   */
  void wait(int timeout) {
    if (::poll(sources_.data(), sources_.size(), timeout) >= 0) return;
    if (errno != EINTR) throw SystemError("cannot wait for what ranks say", errno);
  }
  bool happened(std::size_t which) const { return which != kNone && sources_[which].revents != 0; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::vector<pollfd> sources_;
};

}  // namespace tutti::launch
