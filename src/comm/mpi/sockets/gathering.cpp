// When the kernel is to gather notes, and when it is to confirm what has come.
#include "comm/mpi/sockets/gathering.hpp"

#include <algorithm>
#include <utility>

namespace tutti::mpi {

bool Gathering::before(const Socket& socket, bool is_note, bool others) {
  run_ = is_note ? std::min(run_ + 1, kRun) : 0;
  if (run_ == kRun && !gathers_ && (others || has_unsent(socket))) --run_;
  const bool gathers = run_ == kRun;
  if (gathers != gathers_ && send_at_once(socket, !gathers)) gathers_ = gathers;
  is_owed_ = false;
  return run_ > 1;
}

void Gathering::note_message(const Socket& socket, bool goes_one_way, bool is_to_confirm) {
  run_ = 0;
  is_owed_ = !goes_one_way;
  if (is_to_confirm && has_read_ && confirm_at_once(socket)) has_read_ = false;
}

void Gathering::note_wait(const Socket& socket) {
  if (std::exchange(is_owed_, false)) confirm_now(socket);
}

}  // namespace tutti::mpi
