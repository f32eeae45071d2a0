// MPI as what carries bytes between hosts, with a watch on the peers.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/failures/watch.hpp"
#include "comm/mpi/lifecycle.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/sockets/streams.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

class Whole;

/**
 * Messages over MPI, and those of collectives between leaders, and in lanes, over TCP where MPI has
 * nothing faster. Ranks are the communicator's global ranks.
 *
 * MPI does not report a dead peer, so every wait has a deadline. While a rank waits it
 * also answers control messages: a rank whose deadline passed asks those it waits for whom *they*
 * wait for, follows the answers, and blames those that do not answer. Whoever learns that a rank
 * is lost tells every other rank, and all of them throw the same PeerLost.
 */
class Channel final : public Wire {
 public:
  /**
   * Over `session`'s communicator, of which `members` (ranks of it, by global rank of this
   * channel) take part. `context` tells this channel's messages from those of other channels of
   * the same session; members agree on it. Throws Error if MPI has no tags left for it.
   */
  Channel(std::shared_ptr<Session> session, std::vector<int> members, int context,
          std::chrono::milliseconds timeout);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  /** Does not call MPI once it is finalised; requests of a failed channel are left alone. */
  ~Channel() override;

  /**
   * Ends a channel whose owner is gone: members that still wait for this one get PeerLost. Waits
   * for nobody. The channel and its session stay until all members have left: MPI gives the number
   * of a freed communicator to the next one, and messages that come late along with it. At exit
   * they get a second more to do so, since MPI is not to be finalised with messages under way.
   */
  static void leave(std::unique_ptr<Channel> channel) noexcept;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::shared_ptr<Session>& session() const { return session_; }
  /** The session's ranks by this channel's ranks. */
  const std::vector<int>& members() const { return members_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  ScratchPool& scratch() override { return scratch_; }
  MessageCounts& counts() override { return watch_.counts(); }
  std::int64_t bytes_sent() const override { return bytes_sent_; }

  std::int64_t longest(int peer, Traffic traffic) const override {
    return traffic != Traffic::ahead && has_stream(peer, traffic) ? kWholePiece : kPiece;
  }
  Posted post_send(const std::byte* data, std::int64_t bytes, int destination,
                   Traffic traffic) override;
  void hold(bool whether) override {
    if (streams_) streams_->hold(whether);
  }
  Posted post_receive(std::byte* data, std::int64_t bytes, int source, Traffic traffic) override;
  bool is_fast() const override { return is_fast_; }
  bool passes_on(std::span<const int> ranks) const override;
  Passed post_passed(std::byte* data, std::int64_t bytes, int source, int destination,
                     Traffic traffic) override;
  using Wire::take;
  std::optional<int> take(std::byte* data, std::int64_t bytes, Traffic traffic, int source,
                          std::span<const int> except) override;
  bool has_read(int source, Traffic traffic) override {
    return has_stream(source, traffic) && streams_->has_read(source, traffic);
  }
  bool progress(std::span<Posted> posted, std::span<const int> peers) override;
  bool is_flowing() override { return streams_ && streams_->are_flowing(); }
  bool pause(Clock::duration still, Side side) override;
  void withdraw(Posted receive) override;
  Clock::time_point now() const override { return Clock::now(); }
  std::unique_ptr<Lookout> look_out(Side side, std::chrono::milliseconds timeout) override {
    return watch_.look_out(side, timeout);
  }
  void abandon(Traffic traffic, std::span<Posted> receives, std::span<const Posted> sends,
               std::span<const std::shared_ptr<const void>> kept) noexcept override;

  /** Tells which ranks share a host, before the first wait; a collective of all ranks, whose
   * leaders connect the hosts (see connect_hosts()), with the help of the `whole` of which they are
   * a part, if there is one. Throws PeerLost. */
  void set_hosts(const Layout& layout, Whole* whole = nullptr);
  /** Whether a connection carries messages of `traffic` to `rank`, and from it: the same at both
   * ends. */
  bool has_stream(int rank, Traffic traffic) const {
    return streams_ && streams_->reaches(rank, traffic);
  }

  /** Whether this rank's collectives have connections of their own: of a leader with all others, or
   * some, of another rank with those of its lane. */
  bool has_streams() const { return streams_ != nullptr; }
  /** Whether each rank exchanges a share of long sums itself: hosts are as Wire::has_lanes() says,
   * and their leaders have connections with each other. The same at all ranks; after set_hosts().
   */
  bool has_lane() const { return has_lane_; }
  /** Whether the hosts have tested what is_fast() says, as far as they came to it. The same at all
   * ranks. */
  bool knows_wire() const { return knows_wire_; }

  /** See Watch::Idle. Set before the first wait. */
  void set_idle(Watch::Idle idle) { watch_.set_idle(std::move(idle)); }

  /** A count that grows while a rank of this host waits, nothing for other ranks: who does not
   * answer over MPI is not lost if it grows. Set before the first wait. */
  void set_heartbeat(std::function<std::optional<std::uint32_t>(int rank)> heartbeat) {
    watch_.set_heartbeat(std::move(heartbeat));
  }

  /** While it exists, what the calling thread does is one call (see look_out()). */
  using CallScope = WaitGraph::CallScope;

  /**
   * Answers control messages; throws PeerLost if one says that a rank is lost. Also called by
   * whoever waits for something else, with the ranks it waits for, at least every 100 ms. Moves
   * what this rank's collectives have under way meanwhile. Cheap; does not block.
   */
  void poll(std::span<const int> waiting_for) {
    watch_.poll(waiting_for);
    if (streams_) streams_->progress();
    tend_departed();
  }
  /** Asks those of `ranks` whether they have left that may not have told. */
  void enquire(std::span<const int> ranks) { watch_.enquire(ranks); }
  /** Whether that is known of a rank. */
  bool has_left(int rank) { return watch_.has_left(rank); }

  /** See Watch. */
  void look_around(std::span<const int> waiting_for) {
    watch_.look_around(waiting_for, Side::collective);
  }
  void investigate(std::span<const int> suspects, std::chrono::milliseconds overdue) {
    watch_.investigate(suspects, overdue);
  }
  void ask_the_cut_off_again() { watch_.ask_the_cut_off_again(); }
  std::function<void()> investigation(std::span<const int> suspects) {
    return watch_.investigation(suspects);
  }

  /**
   * Tells every member that `ranks` are lost, so that they stop waiting, unless a loss is known
   * already. Blocks the finder for a quarter of a second at most. From now on the channel is
   * failed: it is not freed, and MPI is not finalised by tutti.
   */
  void announce_lost(std::span<const int> ranks, std::string_view reason,
                     Herald herald = Herald::finder, Ended ended = Ended::unknown) noexcept {
    watch_.announce_lost(ranks, reason, herald, ended);
  }
  /** The same for a mismatch that only some members have seen. */
  void announce_mismatch(std::string_view text, Herald herald = Herald::finder) noexcept {
    watch_.announce_mismatch(text, herald);
  }
  /** See Watch. */
  void note_mismatch(std::string_view text) noexcept { watch_.note_mismatch(text); }
  /** Whether that is what this rank has heard over the channel, or has told or noted itself. */
  bool has_found_mismatch() noexcept { return watch_.has_found_mismatch(); }
  /** Those of `ranks` that have left, and of whom nothing comes any more for a wait of `side`. */
  RecycledVector<int> leavers(std::span<const int> ranks, Side side) {
    return watch_.leavers(ranks, side);
  }
  /** Marks the channel failed without a message, for errors that all members saw. */
  void fail() noexcept { session_->fail(); }

 private:
  class All;
  static void tend_departed() noexcept;
  /** Whether the next `bytes` bytes to `destination` are to be waited for until it takes them. */
  bool is_to_be_confirmed(std::int64_t bytes, int destination);
  /** progress() of those that MPI carries. */
  bool progress_mpi(std::span<Posted> posted, std::span<const int> peers);
  bool progress_streams(std::span<Posted> posted);
  /** take() of what MPI carries. */
  std::optional<int> take_from_mpi(std::byte* data, std::int64_t bytes, Traffic traffic,
                                   int source);
  /** Whether what else has come is heard first, which may tell why a message was wrong. */
  enum class News : std::uint8_t { are_heard, are_known };
  /** Throws PeerLost if a connection is of no use any more that somebody waits for. */
  void check_streams(News news);
  int tag(Traffic traffic) const { return first_tag_ + static_cast<int>(traffic); }

  std::shared_ptr<Session> session_;
  std::vector<int> members_;
  int first_tag_;
  std::chrono::milliseconds timeout_;
  int rank_;
  ScratchPool scratch_{&leave_to_mpi};
  std::atomic<std::int64_t> bytes_sent_ = 0;
  std::vector<std::atomic<std::int64_t>> unconfirmed_;  // bytes, by rank
  std::unique_ptr<Streams> streams_;                    // nothing before set_hosts()
  std::vector<int> connected_;  // of a leader: all of them, if each has connections with all others
  bool has_lane_ = false;
  bool knows_wire_ = false;
  bool is_fast_ = false;
  Watch watch_;
  bool is_present_ = true;  // until it is left
};

}  // namespace tutti::mpi
