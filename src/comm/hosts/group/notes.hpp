// What goes before the data of a call that goes one way, and how ranks find that they make another.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/recycled.hpp"
#include "comm/batch.hpp"
#include "comm/signature.hpp"

namespace tutti {

/**
 * In a broadcast or a reduce that goes one way nobody waits for an answer. So what the sender asks
 * for travels ahead of its data, in a note, and who gets it compares that with its own call before
 * it writes anything. Whoever makes another call finds out as well, since everybody looks at all
 * notes that come while it waits, for whatever:
 *
 * - A note of a call that this rank has made, and in which it did not wait for the sender: the two
 *   have made different calls. One of a later call is kept: who waits for nobody runs ahead. But
 *   not of a sender that is waited for, whose note of this call would have come before.
 * - Who has waited for a note for some time asks for it, with what it asks for itself. If that one
 *   is in the same call, and it is another one, it will never send the note; nor if it has gone on,
 *   and its last call that went one way was another one.
 *
 * A call that this rank has passed was either the same as that of the others, or somebody between
 * it and the root finds the difference. What two roots of one call have seen of each other by then
 * may be nothing: therefore the signature of each later call contains a hash of those before it
 * that went one way.
 *
 * Safe from any thread, apart from write(), wait() and end(), which are the collective's.
 */
class Notes {
  struct Note {
    Signature signature;
    Signature before;          ///< the sender's last call before that went one way
    std::int64_t carried = 0;  ///< bytes that follow in the same message
    std::int32_t author = 0;   ///< the rank that asks for this
    std::uint32_t away = 0;    ///< how long that one had been in no collective, in microseconds
  };

 public:
  static constexpr int kNobody = -1;
  /** What travels in a note, in bytes: it comes as a whole. */
  static constexpr std::int64_t kCarried =
      Wire::kShort / 64 * 64 - static_cast<std::int64_t>(sizeof(Note));

  /** `wire` outlives it, or its end(). */
  explicit Notes(Wire& wire) : wire_(wire) {}
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;
  ~Notes() = default;

  /** A call of this rank begins, in which it waits for a note of each of `awaited`. The last one
   * that went one way was `before`. */
  void begin(const Signature& signature, const Signature& before, std::span<const int> awaited);
  /** A note on the call under way, with `data`, of at most kCarried bytes; how long it is. `note`
   * has Wire::kShort bytes. This rank has been `away` from collectives before. */
  std::int64_t write(std::byte* note, std::span<const std::byte> data,
                     std::chrono::microseconds away);
  /** How long its author had been away: a wait for it beyond that is not for the author. */
  static std::chrono::microseconds away_in(const std::byte* note);
  /** What a note carries. */
  static const std::byte* carried_by(const std::byte* note) { return note + sizeof(Note); }
  /** Who has sent a note, and how long it is. */
  struct Taken {
    int source;
    std::int64_t bytes;
  };
  /** Blocks until one of the awaited notes has come, which then is awaited no more. Throws
   * OneSidedMismatch, and PeerLost of the wire. */
  Taken wait(std::byte* note);
  /** Whether that one has been passed on along with one before it: see next(). */
  bool is_passed_on() const { return passed_on_ != nullptr; }
  /** Blocks until it has left then. Throws PeerLost of the wire. */
  void wait_until_passed_on() {
    passed_on_->wait();
    passed_on_.reset();
  }
  /** A note of a later call, and the batch by which it leaves ahead of that. */
  struct Next {
    std::span<const std::byte> note;
    Batch* batch = nullptr;
  };
  /** Of who passes on what wait() has brought, `note`, or what this has: the note of the same
   * root's next broadcast, if it came along with that and takes the same way. It counts as passed
   * on then. Nobody waits for it before its call, since who takes it may be busy until then: see
   * wait_until_passed_on(). No batch: there is none. */
  Next next(const std::byte* note);
  /** Looks at what has come, in a wait that lasts, or once in many calls without one. Throws
   * OneSidedMismatch. */
  void look();
  /** Before the wire goes; it is not called any more unless that may be. */
  void end(bool may_call = true) noexcept;

 private:
  struct Early {
    int source;
    std::shared_ptr<const RecycledVector<std::byte>> message;
    std::unique_ptr<Batch> passed_on;  ///< how it leaves ahead of its call, if it does
  };
  enum class Fit { awaited, early };
  /** Of each rank so many that are early are kept; others stay with the wire, and hold up who sends
   * them. */
  static constexpr std::size_t kMostEarly = 128;

  /** Of notes with nothing in them, before data mostly, none is as long as the one before it, and
   * one in some by Wire::kSpare longer than without what is appended at `end`: how much that is. It
   * serves connections (see mpi::Confirming), and costs others as little. */
  std::int64_t lengthen(std::byte* end);

  // With mutex_ held:
  Fit examine(const Note& note, int source) const;
  bool awaits(int source) const {
    return std::find(awaited_.begin(), awaited_.end(), source) != awaited_.end();
  }
  void examine_question(const Note& note) const;
  [[noreturn]] void refuse(const Note& note) const;
  /** Whether an awaited note is in `room`. */
  bool take_awaited(std::byte* room);
  bool take_early(std::byte* room);
  void has_taken(int source);
  void keep(const std::byte* note, int source);
  /** Of `early_`: the one that follows on `note` of `taken_from_`, if it is there. */
  Early* following(const Note& note);
  /** How many of `source` are early. */
  std::size_t early_of(int source) const;
  /** Keeps all that have come, of whomever, and compares them. */
  void take_all();
  void hear_questions();

  // The collective's:
  void ask();

  Wire& wire_;
  std::mutex mutex_;
  Signature signature_;
  Signature before_;
  RecycledVector<int> awaited_;  // those whose notes of the call under way have not been taken
  int taken_from_ = kNobody;     // who has sent what wait() has brought
  bool waits_ = false;
  RecycledVector<Early> early_;
  RecycledVector<int> full_;  // those of whom enough are early
  RecycledVector<Note> early_questions_;
  // The collective's:
  std::int64_t lengthened_ = 0;       // notes that were written with nothing in them
  std::unique_ptr<Batch> passed_on_;  // how what wait() has brought has left before
  std::optional<Batch> question_;
};

}  // namespace tutti
