// What a wire does besides moving bytes: finds out who is lost and who has left, and tells others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/recycled.hpp"
#include "comm/failure.hpp"
#include "comm/failures/control_message.hpp"
#include "comm/failures/control_network.hpp"
#include "comm/failures/departures.hpp"
#include "comm/failures/heartbeats.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/message_counts.hpp"
#include "comm/wire.hpp"

namespace tutti {

/**
 * The messages "these ranks are lost", "these two do not match", and "I have left". They are
 * handled whenever a rank that waits calls poll(), along with the questions of the WaitGraph. All
 * calls are safe from several threads. Ranks are those of the channel.
 *
 * The leader of a host also looks at its connections to other hosts, and news of a failure go over
 * these as well: they arrive without anybody calling MPI.
 */
class Watch final {
 public:
  /** Of rank `rank` of a wire of `members`, ranks of `session`, whose waits have a deadline of
   * `timeout`. `members` and `session` outlive it. */
  Watch(ControlNetwork& session, const std::vector<int>& members, int rank, int tag,
        std::chrono::milliseconds timeout);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() = default;

  /** Which ranks share a host, and what shows whether others can be reached. */
  void set_hosts(const Layout& layout, std::unique_ptr<Heartbeats> heartbeats);

  /** Handles what has come in; the calling thread waits for `waiting_for`. Throws PeerLost or
   * MismatchError once one was announced. Does something at most once a millisecond. */
  void poll(std::span<const int> waiting_for);

  /** A wait's of `side` that lasts, or of one that is about to. The deadline is put off while ranks
   * that keep this one waiting get on with calls that they had begun when it passed first. */
  std::unique_ptr<Wire::Lookout> look_out(Wire::Side side, std::chrono::milliseconds timeout);
  /** Bytes of the calling thread have moved. */
  void progressed();

  /** What waits that last do for other peers than those of the wire. */
  struct Idle {
    /** Called about once a millisecond; what it throws ends the wait. */
    std::function<void(Wire::Side)> during;
    /** Called when such a wait has ended, however that was. Does not throw. */
    std::function<void(Wire::Side)> after;
  };
  /** Set before the first wait. */
  void set_idle(Idle idle) { idle_ = std::move(idle); }
  /** poll(), and what is done meanwhile for other peers, by a wait that is part of `side`. */
  void look_around(std::span<const int> waiting_for, Wire::Side side);
  /** Ends what look_around() shows of a wait. */
  void end_wait(Wire::Side side) const;

  /** `overdue` after the deadline of a wait that is not the wire's: finds out which of `suspects`
   * have stopped, or that they wait for each other, and throws PeerLost; returns if one who keeps
   * them waiting has got on in the meantime. Blocks for a second or two. */
  void investigate(std::span<const int> suspects, std::chrono::milliseconds overdue);
  /** Before a call that needs all members. Hosts of some may have been found out of reach in
   * another communicator, after a deadline as long as this one's: if their kernels still do not
   * answer, they are lost here, too. Or else who has waited here meanwhile for this rank, which has
   * waited there, would wait for one more deadline. Blocks for a third of a second, if there are
   * any; throws PeerLost. */
  void ask_the_cut_off_again() {
    if (wait_graph().any_cut_off()) ask_again();
  }
  /** For a wait whose deadline is to pass in inquiry_lead(): begins at once; what it
   * returns is to be called after the deadline, now and then, and throws PeerLost. Somebody polls
   * meanwhile. */
  std::function<void()> investigation(std::span<const int> suspects);
  /** Tells all members that `ranks` are lost, and throws what all of them throw. */
  [[noreturn]] void lose(std::vector<int> ranks, const std::string& reason);

  /** Whether it is known that a member has left. */
  bool has_left(int rank);

  /** A message of `ranks` has failed: throws what else has come that tells why, such as a mismatch
   * in a collective, or else does as lose() does. */
  [[noreturn]] void lose_by_message(std::vector<int> ranks, const std::string& reason);

  /** Tells all members that `ranks` are lost, unless a failure is known already. The finder lends
   * MPI a quarter of a second at most; those who stand in for it tell as well, but lend it none. A
   * thread that may not call it tells by the connections to other hosts alone, if there are some,
   * and leaves the rest to one that may. */
  void announce_lost(std::span<const int> ranks, std::string_view reason,
                     Herald herald = Herald::finder, Ended ended = Ended::unknown) noexcept;
  /** The same for a mismatch that only some ranks have seen; who stands in lends that time, too. */
  void announce_mismatch(std::string_view text, Herald herald = Herald::finder) noexcept;
  /** One of which the others know, or will hear by somebody else: tells nobody that this rank
   * leaves, which might be heard before and taken for the cause. */
  void note_mismatch(std::string_view text) noexcept;

  /** Whether that is what this rank has heard, or found. */
  bool has_found_mismatch() noexcept {
    const std::lock_guard lock(mutex_);
    return failure_ && failure_->kind == FailureReport::Kind::mismatch;
  }

  /** Tells those who may wait for it that this rank has left (see Departures), unless it knows of a
   * failure: the others have heard of that, or will. Does not block. */
  void leave() noexcept;
  /** After leave(), to be called now and then: whether all other members have left as well, so that
   * no message is under way any more, or nothing can be known of them. */
  bool all_have_left() noexcept;
  /** Those of `ranks` that have left, and told this one. What they had sent before may still be
   * under way. */
  RecycledVector<int> leavers(std::span<const int> ranks);
  /** Those of `ranks` that have left, and of whom nothing is under way any more that could end a
   * wait of `side`. */
  RecycledVector<int> leavers(std::span<const int> ranks, Wire::Side side);
  /** When a wait lasts as long, */
  static constexpr std::chrono::milliseconds kToEnquire{200};
  /** it asks those of `ranks` whether they have left that may not have told. */
  void enquire(std::span<const int> ranks);
  /** The messages of the wire that this is the watch of. */
  MessageCounts& counts() { return counts_; }

  // For an Inquiry.

  const ControlNetwork& session() const { return session_; }
  WaitGraph& wait_graph() const { return session_.wait_graph(); }
  const TimeSource& time() const { return wait_graph().time(); }
  Acquaintance acquaintance() const;
  /** See Acquaintance. Set before the first wait. */
  void set_heartbeat(std::function<std::optional<std::uint32_t>(int rank)> heartbeat) {
    heartbeat_ = std::move(heartbeat);
  }
  int rank() const { return rank_; }
  /** The channel's rank of a rank of the session. */
  int rank_of(int session_rank) const;
  /** Which ranks share a host; nothing before set_hosts(). */
  const std::optional<Layout>& layout() const { return layout_; }
  /** Sends the other hosts a byte, for their kernels to acknowledge. */
  void ping_hosts();
  /** The loss of the hosts whose kernels do not, if one of `ranks` is there; otherwise nobody's. */
  Loss unreachable(std::span<const int> ranks);

 private:
  class WaitLookout;
  void ask_again();
  using Clock = TimeSource::Clock;
  // All of these are called with mutex_ held.
  void send_to_all(const FailureReport& report, std::span<const int> except = {});
  void receive();
  void handle(const ControlMessage& message, int source);
  void fail(const FailureReport& report);
  void announce(const FailureReport& found, Herald herald);
  void pass_on(const FailureReport& report);
  void look_after_hosts(Clock::time_point now);
  std::optional<Heartbeats::Found> look_at_heartbeats();
  void note_ended(std::span<const int> ranks);
  void throw_failure() const;
  void tell_departure(int rank);

  ControlNetwork& session_;
  const std::vector<int>& members_;
  int rank_;
  std::chrono::milliseconds timeout_;
  Idle idle_;
  std::function<std::optional<std::uint32_t>(int)> heartbeat_;
  MessageCounts counts_;

  std::mutex mutex_;
  std::unique_ptr<Messenger> messenger_;
  std::optional<Layout> layout_;
  std::unique_ptr<Heartbeats> heartbeats_;
  Clock::time_point last_look_{};  // at these
  Clock::time_point last_poll_{};
  Departures departures_;
  std::optional<FailureReport> failure_;  // the first that was announced, or noted
  bool is_noted_ = false;                 // and by no message
};

}  // namespace tutti
