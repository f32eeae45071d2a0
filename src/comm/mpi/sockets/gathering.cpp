// When the kernel is to gather notes.
#include "comm/mpi/sockets/gathering.hpp"

#include <algorithm>

namespace tutti::mpi {

bool Gathering::before(const Socket& socket, bool is_note, bool others) {
  run_ = is_note ? std::min(run_ + 1, kRun) : 0;
  if (run_ == kRun && !gathers_ && (others || has_unsent(socket))) --run_;
  const bool gathers = run_ == kRun;
  if (gathers != gathers_ && send_at_once(socket, !gathers)) gathers_ = gathers;
  return run_ > 1;
}

}  // namespace tutti::mpi
