// Notes in a row over one connection go together.
#pragma once

#include "comm/mpi/sockets/socket.hpp"

namespace tutti::mpi {

/**
 * What one end of a connection does so that the kernel holds back a short message until those
 * before it are confirmed, and sends it along with others then (Nagle's rule, RFC 896): of notes in
 * a row each would cost more than all of their bytes do. That begins with the third, once those
 * before it have left: in the second the other end is asked to confirm what it reads as soon as it
 * does, where the kernel itself would wait 40 ms for something to confirm along with.
 *
 * It would not wait longer than for the next message, though, of which it does not know that nobody
 * answers it: the call that reads that confirms both, before it returns (Linux does so when two
 * segments have come that end what was written, ICSK_ACK_PUSHED2). So who waits for a note confirms
 * an exchange before it meanwhile, as there is time.
 */
class Gathering {
 public:
  /** Before a message is sent, for which `others` wait if so: whether the other end is to be asked
   * to confirm. */
  bool before(const Socket& socket, bool is_note, bool others);
  /** Bytes have been read. */
  void note_read() { has_read_ = true; }
  /** They held the beginning of a message: whether nobody answers its kind, and whether it asks to
   * be confirmed. */
  void note_message(const Socket& socket, bool goes_one_way, bool is_to_confirm);
  /** A note is awaited, and has not come. */
  void note_wait(const Socket& socket);

 private:
  static constexpr int kRun = 3;  ///< so many notes in a row are gathered

  int run_ = 0;  ///< notes that were sent last, with nothing else between, until they are gathered
  bool gathers_ = false;
  bool has_read_ = false;  ///< since it last confirmed
  bool is_owed_ = false;   ///< the last message was one of an exchange, and nothing was sent since
};

}  // namespace tutti::mpi
