// Notes in a row over one connection go together.
#pragma once

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/**
 * What the sender of a connection does so that the kernel holds back a short message until those
 * before it are confirmed, and sends it along with others then (Nagle's rule, RFC 896): of notes in
 * a row each would cost more than all of their bytes do. That begins with the third, once those
 * before it have left: in the second the other end is asked to confirm what it reads as soon as it
 * does, where the kernel itself would wait 40 ms for something to confirm along with.
 */
class Gathering {
 public:
  /** Before a message is sent, for which `others` wait if so: whether the other end is to be asked
   * to confirm. */
  bool before(const Socket& socket, bool is_note, bool others);
  /** A message has come. */
  void note_message() { run_ = 0; }

 private:
  static constexpr int kRun = 3;  ///< so many notes in a row are gathered

  int run_ = 0;  ///< notes that were sent last, with nothing else between, until they are gathered
  bool gathers_ = false;
};

}  // namespace tutti::mpi
