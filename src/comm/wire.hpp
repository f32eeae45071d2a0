// What carries bytes between hosts: all that the collectives between them ask of a network.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/layout.hpp"
#include "comm/message_counts.hpp"
#include "comm/scratch.hpp"

namespace tutti {

/**
 * Messages among the ranks of one communicator. Between two ranks and of one kind of traffic they
 * arrive in the order in which they were posted. Those of collectives may hold each other up, of
 * whatever kind: what was sent first is to be received, or taken, first. MPI is one implementation
 * (mpi::Channel); whoever uses this interface cannot tell. Used by one collective, one send and one
 * recv at a time, each from any thread.
 */
class Wire {
 public:
  using Clock = std::chrono::steady_clock;

  /**
   * What travels: kinds do not mix. The sender of a point-to-point message sends an `offer` before,
   * to which its receiver answers with a `reply`. What a collective sends `ahead` leaves before its
   * ranks know that they agree, so its receiver may not expect it. Of a call that goes one way (see
   * Notes) a `note` says what it is, which a `question` asks for, and what is `noted` follows.
   */
  enum class Traffic : std::uint8_t {
    collective,
    point_to_point,
    offer,
    reply,
    ahead,
    note,
    noted,
    question
  };
  static constexpr int kTraffics = 8;
  /** From three to so many hosts nothing goes `ahead`: what leaves before they agree follows the
   * hash that they compare. */
  static constexpr int kMostWithoutAhead = 8;
  static constexpr bool has_ahead(int hosts) { return hosts <= 2 || hosts > kMostWithoutAhead; }
  /** Whether each rank exchanges a share of long sums itself, with those of its place on the other
   * hosts, by connections where there can be some: hosts have several ranks, as many each, and are
   * so few that all are connected. */
  static bool has_lanes(const Layout& layout) {
    return layout.is_even() && has_lanes(layout.host_count(), layout.largest_host());
  }
  static constexpr bool has_lanes(int hosts, int ranks_of_each) {
    return hosts > 1 && hosts <= kMostWithoutAhead && ranks_of_each > 1;
  }
  /** Whether nobody answers it. */
  static constexpr bool is_one_way(Traffic traffic) {
    return traffic == Traffic::note || traffic == Traffic::noted;
  }
  /** What a wait is part of, of which a rank may be in one each at a time. */
  enum class Side : std::uint8_t { collective, send, recv };
  /** The side of the wait that a message of `traffic` ends. */
  static constexpr Side side_of(Traffic traffic) {
    switch (traffic) {
      case Traffic::point_to_point:
      case Traffic::offer:
        return Side::recv;
      case Traffic::reply:
        return Side::send;
      default:
        return Side::collective;
    }
  }

  /** A message under way; kEnded once it is none any more. One that has failed never ends, but may
   * become kFailed. */
  using Posted = std::uint64_t;
  static constexpr Posted kEnded = 0;
  static constexpr Posted kFailed = ~Posted{1};

  /** A posted message travels in one piece of at most so many bytes. Open MPI sends up to 64 KiB,
   * its header included, over TCP without asking first. */
  static constexpr std::int64_t kPiece = std::int64_t{60} * 1024;
  /** The same where a connection carries the messages of a collective: one call of
   * the kernel takes, or brings, all that there is. In pieces of 512 KiB, 1 MiB takes up to twice
   * as long. */
  static constexpr std::int64_t kWholePiece = std::int64_t{1} << 30U;
  /** A window that is one such piece, where what has come is added while another travels. */
  static constexpr std::int64_t kLongPiece = std::int64_t{512} * 1024;
  /** What arrives as a whole: below every eager limit of Open MPI. */
  static constexpr std::int64_t kShort = 3900;
  /** By so much some messages are longer than all others of their kind: see mpi::Confirming. */
  static constexpr std::int64_t kSpare = 384;
  /** Pieces of a message that should be under way: eight reach 0.95 of a wire of 1 Gbit/s; two of
   * 256 KiB, which ask, reach 0.82. */
  static constexpr std::int64_t kUnderWay = 8;
  /** Pieces of a message that are posted at once: all that one of kLongPiece has, so that nothing
   * of it comes behind what is posted after it. */
  static constexpr std::int64_t kPosted = (kLongPiece + kPiece - 1) / kPiece;
  static_assert(kPosted >= kUnderWay);

  /** Looks after the ranks that a wait is for, once it lasts. The wait's deadline begins with it.
   */
  class Lookout {
   public:
    virtual ~Lookout() = default;
    /** Who is lost: throws PeerLost if one of `awaited` is, or the wait is over its deadline; what
     * the communicator has failed with, if it has. */
    virtual void look(std::span<const int> awaited) = 0;
    /** Bytes have moved: the deadline begins anew. */
    virtual void restart() = 0;
  };

  virtual ~Wire() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /** The most that a posted message to `peer`, or from it, may have: the same at both ends. */
  virtual std::int64_t longest(int /*peer*/, Traffic /*traffic*/) const { return kPiece; }
  /** Starts a message of at most longest() bytes, which stay put until it has ended. Throws
   * PeerLost. */
  virtual Posted post_send(const std::byte* data, std::int64_t bytes, int destination,
                           Traffic traffic) = 0;
  /** From hold(true) to hold(false) what is posted may wait for what follows it, to leave together:
   * nobody waits for it meanwhile. */
  virtual void hold(bool /*whether*/) {}
  /** The message may be shorter than `bytes`, not longer. */
  virtual Posted post_receive(std::byte* data, std::int64_t bytes, int source, Traffic traffic) = 0;
  /** Whether bytes between hosts take so little time that fewer messages are worth more of them,
   * those of three to kMostWithoutAhead hosts whose leaders have connections: the same at all
   * ranks. */
  virtual bool is_fast() const { return false; }
  /** A message that is received, and sent on. */
  struct Passed {
    Posted receive;
    Posted send;
  };
  /** Whether post_passed() takes messages of collectives among `ranks`: the same at all of them. */
  virtual bool passes_on(std::span<const int> ranks) const = 0;
  /** Receives a message of exactly `bytes` bytes, at most longest(), and sends it on: as it comes,
   * as far as may be. Throws PeerLost. */
  virtual Passed post_passed(std::byte* data, std::int64_t bytes, int source, int destination,
                             Traffic traffic) = 0;
  /** Of take(): from whoever, but for those of `except`. */
  static constexpr int kAnybody = -1;
  /** Takes a message of at most `bytes` bytes, themselves at most kShort, that has come from
   * `source`, if there is one: its sender. Nobody may have posted a receive for this kind of
   * traffic. Does not block. Throws PeerLost if nothing can come from `source` any more. */
  virtual std::optional<int> take(std::byte* data, std::int64_t bytes, Traffic traffic, int source,
                                  std::span<const int> except) = 0;
  /** From `source`, or from whoever. */
  std::optional<int> take(std::byte* data, std::int64_t bytes, Traffic traffic, int source) {
    return take(data, bytes, traffic, source, {});
  }
  /** Whether a message that take() would bring is here already, since it came along with others. */
  virtual bool has_read(int /*source*/, Traffic /*traffic*/) { return false; }
  /** Moves bytes. Those of `posted` that have ended become kEnded; whether there were any, or bytes
   * of long ones have moved. Throws PeerLost if one has failed, which is one of the ranks `peers`,
   * by message, or what else has come that tells why. Does not block. */
  virtual bool progress(std::span<Posted> posted, std::span<const int> peers) = 0;
  /** Whether parts of long messages move so fast that it is no time to nap. */
  virtual bool is_flowing() { return false; }
  /** Gives way to others between two calls of progress() in a wait of `side`, the longer the longer
   * nothing has moved: for `still`. Whether there is time, and need, to look after the ranks that
   * are waited for. */
  virtual bool pause(Clock::duration still, Side side) = 0;
  virtual Clock::time_point now() const = 0;
  /** For a wait that lasts, with a deadline of `timeout`. */
  virtual std::unique_ptr<Lookout> look_out(Side side, std::chrono::milliseconds timeout) = 0;
  /** Takes back a receive for which nothing comes: its sender has said so. */
  virtual void withdraw(Posted receive) = 0;
  /** Gives up messages of `traffic`, which fails the communicator: receives that have not begun are
   * cancelled; others, and those of `sends` that have not ended, may still touch their memory,
   * which `kept` shares. */
  virtual void abandon(Traffic traffic, std::span<Posted> receives, std::span<const Posted> sends,
                       std::span<const std::shared_ptr<const void>> kept) noexcept = 0;

  virtual std::chrono::milliseconds timeout() const = 0;
  /** Memory for the messages of collectives. */
  virtual ScratchPool& scratch() = 0;
  /** Whoever sends or receives over the wire counts it here (see note_sent()). */
  virtual MessageCounts& counts() = 0;
  /** What this rank's collectives have sent so far, in bytes of their messages. */
  virtual std::int64_t bytes_sent() const = 0;

  void note_sent(int destination, Traffic traffic) {
    counts().count_sent(destination, static_cast<std::size_t>(side_of(traffic)));
  }
  /** Of one that is abandoned: its receiver is not to wait for it once this rank has left. */
  void note_abandoned(int destination, Traffic traffic) {
    counts().discount_sent(destination, static_cast<std::size_t>(side_of(traffic)));
  }
  void note_received(int source, Traffic traffic) {
    counts().count_received(source, static_cast<std::size_t>(side_of(traffic)));
  }
};

/** While it lives, what is posted leaves together: see Wire::hold(). */
class Held {
 public:
  explicit Held(Wire& wire) : wire_(wire) { wire_.hold(true); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { wire_.hold(false); }

 private:
  Wire& wire_;
};

}  // namespace tutti
