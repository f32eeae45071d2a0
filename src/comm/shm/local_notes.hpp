// Short data that a rank leaves for the others of its host, and goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/record/journal.hpp"
#include "comm/shm/signatures.hpp"

namespace tutti::shm {

/**
 * Each rank has a ring of notes. All ranks of a host make the same calls, and so take part in the
 * same notes: who has the data writes it into its own ring, all others read it there when they come
 * to that call; or all others write something, which one of them reads. A rank's counter
 * RankSlot::noted says how many it has written or read by now. So nobody writes what others write,
 * and who writes waits for the others only while one of them has Notebook::kNotes to read.
 *
 * A note has the hash of its author's signature, with which a reader compares before it takes
 * anything. If others make another call instead, nobody compares; but signatures contain a hash of
 * the calls before that went one way (see Notes), so that Signatures::differing() finds it, for
 * which look() is called: by waits that last, and by who writes one note after the other.
 *
 * One thread makes these calls, apart from look().
 */
class LocalNotes {
 public:
  static constexpr std::int64_t kMost = Notebook::Entry::kMost;

  /** Both outlive it. */
  LocalNotes(LocalGroup& group, const Signatures& signatures)
      : group_(group), signatures_(signatures) {}

  /** Room in the ring for `bytes` bytes of the call under way, at most kMost. Blocks until there is
   * some. Throws OneSidedMismatch. */
  std::span<std::byte> make_room(std::int64_t bytes);
  /** Leaves what is there, whose author, of this host or another one, was away from collectives
   * before. Throws what the communicator has failed with meanwhile: who only passes data on writes
   * its own output after this. */
  void leave(const record::Absence& absence);
  /** Blocks until rank `writer` of this host has left the data of the call under way. For what of
   * this wait the author, who is known as `author`, was away, it is late: not while the writer
   * waits for room, or has not come itself. Throws OneSidedMismatch before it takes anything. When
   * the author was away. */
  record::Absence read(int writer, std::span<std::byte> data, int author);
  /** Blocks until all others have left theirs of the call under way, and puts where those lie into
   * `parts`, by rank: until release(). Throws OneSidedMismatch. When the one of them was away that
   * came last. */
  record::Absence collect(std::span<const void*> parts);
  void release() { group_.control().slot(group_.rank()).noted.publish(number_); }
  /** Takes no part in a note but to know of it. */
  void pass_over() {
    ++number_;
    release();
  }
  /** Whether a rank of the host makes another call, as far as can be seen. Throws
   * OneSidedMismatch. */
  void look() const;

 private:
  Notebook::Entry& note_of(int rank) const { return group_.control().notebook(rank).note(number_); }
  Notebook::Entry& own_note() const { return note_of(group_.rank()); }
  [[noreturn]] void refuse(int writer) const;

  LocalGroup& group_;
  const Signatures& signatures_;
  std::uint32_t number_ = 0;       // of the last note
  std::uint32_t read_by_all_ = 0;  // as far as is known
};

}  // namespace tutti::shm
