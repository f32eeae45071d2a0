// Tells the kernel when to confirm.
#include "comm/mpi/sockets/confirming.hpp"

#include <utility>

namespace tutti::mpi {
namespace {

/** A low-water mark of more than most that goes one way. */
constexpr int kHigh = 64 << 10;

}  // namespace

void Confirming::note_message(const Socket& socket, Wire::Traffic traffic, std::int64_t bytes,
                              bool is_to_confirm) {
  if (traffic == Wire::Traffic::note) {
    one_way_ = bytes;
  } else if (traffic == Wire::Traffic::noted) {
    one_way_ += bytes;
  } else {
    owed_ += bytes;
    if (bytes > segment_) confirm_early(socket, false);
  }
  if (!is_to_confirm) return;
  if (has_read_ && confirm_at_once(socket)) has_read_ = false;
  owed_ = 0;
}

void Confirming::note_wait(const Socket& socket) {
  if (segment_ > 0 && one_way_ > segment_) {
    confirm_early(socket, true);
  } else if (owed_ > kMostOwed) {
    confirm_now(socket);
    owed_ = 0;
  }
}

void Confirming::note_nap(const Socket& socket) {
  confirm_early(socket, false);
  one_way_ = 0;  // or the next look would begin with it again
}

void Confirming::note_send(const Socket& socket, Wire::Traffic traffic, std::int64_t bytes) {
  if (!Wire::is_one_way(traffic) && bytes > segment_) confirm_early(socket, false);
}

void Confirming::confirm_early(const Socket& socket, bool whether) {
  if (std::exchange(is_early_, whether) != whether) set_low_water(socket, whether ? kHigh : 1);
}

}  // namespace tutti::mpi
