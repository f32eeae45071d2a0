// When the kernel confirms what has come over a connection.
#pragma once

#include <cstdint>

#include "comm/mpi/sockets/socket.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

/**
 * What the receiver of a connection does so that no call that reads a note has to send a packet
 * first. The kernel leaves confirming to what is sent next, or waits 40 ms. But it confirms within
 * a call that reads (Linux, __tcp_cleanup_rbuf()):
 *
 * - what has come since it last did, if that is more than the longest segment that it has seen, or
 *   than the last two if these were alike (rcv_mss). So of the notes before data that a rank writes
 *   none is as long as the one before it, and one in some by Wire::kSpare longer (Notes::write()).
 * - the second message of two if nothing is left to be read (ICSK_ACK_PUSHED2): an exchange, as a
 *   barrier, and the note behind it. So who owes the first looks at the second alone, and takes it
 *   off the connection once it has sent something, or when it looks for the next one.
 *
 * A note with so much behind it that it makes more than a segment in any case is confirmed as it
 * comes, by which time its receiver only waits. Whether there is so much, the last one tells. In a
 * long exchange that would hold up both ends, each in the call in which it sends.
 */
class Confirming {
 public:
  explicit Confirming(const Socket& socket) : segment_(segment_of(socket)) {}

  /** Bytes have been read. */
  void note_read() { has_read_ = true; }
  /** They held the beginning of a message of `bytes` bytes with its header, and whether it asks to
   * be confirmed. */
  void note_message(const Socket& socket, Wire::Traffic traffic, std::int64_t bytes,
                    bool is_to_confirm);
  /** A note is awaited, and has not come. */
  void note_wait(const Socket& socket);
  /** Before a nap, which anything is to end. */
  void note_nap(const Socket& socket);
  /** A message of `bytes` bytes is to be sent. */
  void note_send(const Socket& socket, Wire::Traffic traffic, std::int64_t bytes);
  /** Bytes have been sent, along with which the kernel confirms all that has come. */
  void note_sent() { owed_ = 0; }
  /** Whether a note is to be looked at alone. */
  bool looks() const { return owed_ > 0 && owed_ <= kMostOwed && !is_early_; }

 private:
  /** Of more, and a note behind it, no note is so much longer than the others. */
  static constexpr std::int64_t kMostOwed = Wire::kSpare - 64;

  void confirm_early(const Socket& socket, bool whether);

  std::int64_t segment_;      ///< as long as they may be, or 0 if nobody knows
  std::int64_t owed_ = 0;     ///< bytes of exchanges that have come since something was sent
  std::int64_t one_way_ = 0;  ///< bytes of the last note, and of what came behind it
  bool has_read_ = false;     ///< since it last confirmed
  bool is_early_ = false;     ///< confirms what comes
};

}  // namespace tutti::mpi
