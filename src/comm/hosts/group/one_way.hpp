// Broadcasts and reductions that go one way: nobody waits for an answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/batch.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/notes.hpp"

namespace tutti {

/** Whether a broadcast of `bytes` bytes goes one way: nobody waits for an answer, or for those who
 * only get it, unless they pass it on, and whoever makes another call finds that out by Notes. */
bool broadcasts_one_way(const HostGroup& group, std::int64_t bytes);
/** The same of a reduce: each of the others sends what it brings to the root, and goes on. */
bool reduces_one_way(const HostGroup& group, std::int64_t bytes);

/** One such call. Notes::begin() comes before send(), take() and collect(), and is told for whose
 * notes this member waits: for nobody's before send(), the giver's before take(), those of all
 * others before collect(). */
class OneWayCall {
 public:
  enum class Direction : std::uint8_t { from_root, to_root };
  /** What all know of it. */
  struct Terms {
    int root;
    std::int64_t bytes;
    std::int64_t in_a_row = 0;  ///< broadcasts right before it that went one way from the same root
    Direction direction = Direction::from_root;
  };

  /** `group` outlives it. */
  OneWayCall(const HostGroup& group, const Terms& terms) : group_(group), terms_(terms) {}

  /** Who gives this member its note of a broadcast, as a rank. Up to three members get it of the
   * root, more through a binomial tree. Three pass it on, too, from the third in a row: a root that
   * sends one after the other waits for nothing but the calls of its kernel. Data that follow a
   * note go the same way: from the root, or longer ones from each member to the next one, as far as
   * all have connections. */
  int giver() const { return group_.member(giving_member()); }
  /** By the root, who sends for it, or who brings something to it; has been `away` from collectives
   * before. Waits until `data` has left. */
  void send(Notes& notes, std::span<const std::byte> data, std::chrono::microseconds away) const;
  /** By the others: waits for the note of giver(), and passes it on. Throws OneSidedMismatch before
   * anything is written, or later where others pass on data, of which another root's may come
   * before its note. How long the root had been away. */
  std::chrono::microseconds take(Notes& notes, std::span<std::byte> data) const;
  /** Whose note has come last, and how long that one had been away. */
  struct Latest {
    int rank;
    std::chrono::microseconds away;
  };
  /** By the root of a reduce, who waits for notes of all others: for what they bring, and has
   * `merge` add it to `own`. Throws OneSidedMismatch before that. */
  Latest collect(Notes& notes, std::span<const std::byte> own, const HostGroup::Merge& merge) const;

 private:
  /** The way of notes, and of the data behind them: all from the root, through a binomial tree,
   * from each member to the next one; or notes from the root, and shares of the data, which the
   * others pass on to each other; or all to the root. */
  enum class Route : std::uint8_t { from_root, tree, row, shares, to_root };
  Route route() const;
  /** Whether the data follow the note, into which they do not fit. */
  bool data_follow() const { return terms_.bytes > Notes::kCarried; }
  /** The position of whom this member gets one from. */
  int giving_member() const;
  /** Calls taker(position) for those to whom this member gives notes. */
  template <class Taker>
  void for_each_taker(const Taker& taker) const;
  void pass_note(Batch& batch, std::span<const std::byte> note) const;
  /** By who has waited for `note`, with those of later calls that have come along. */
  void pass_notes(Batch& batch, Notes& notes, std::span<const std::byte> note) const;
  /** A note, and the data that follow it on the same way. */
  void send_together(std::span<const std::byte> note, std::span<const std::byte> data) const;
  void take_together(std::span<const std::byte> note, std::span<std::byte> data) const;

  const HostGroup& group_;
  Terms terms_;
};

}  // namespace tutti
