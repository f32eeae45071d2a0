// The control messages of a channel: who is lost, and who has left.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/failure.hpp"
#include "comm/mpi/control_message.hpp"
#include "comm/mpi/heartbeats.hpp"
#include "comm/mpi/messenger.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/wait_graph.hpp"

namespace tutti::mpi {

/**
 * The messages "these ranks are lost", "these two do not match", and "I have left". They are
 * handled whenever a rank that waits calls poll(), along with the questions of the WaitGraph. All
 * calls are safe from several threads. Ranks are those of the channel.
 *
 * The leader of a host also looks at its connections to other hosts, and news of a failure go over
 * these as well: they arrive without anybody calling MPI.
 */
class Watch final : private WaitGraph::Lookout {
 public:
  /** `members` and `session` outlive it. */
  Watch(Session& session, const std::vector<int>& members, int rank, int tag);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() override;

  /** Before the first wait: which ranks share a host; for its leader, the connections to the
   * others. */
  void set_hosts(const Layout& layout, std::unique_ptr<Heartbeats> heartbeats);

  /** Handles what has come in; the calling thread waits for `waiting_for`. Throws PeerLost or
   * MismatchError once one was announced. Does something at most once a millisecond. */
  void poll(std::span<const int> waiting_for);

  /** Tells all members that `ranks` are lost, unless a failure is known already. The finder lends
   * MPI a quarter of a second at most; its neighbours tell as well, should it have been stopped
   * since, but lose no time by it. */
  void announce_lost(std::span<const int> ranks, std::string_view reason,
                     Finder finder = Finder::self) noexcept;
  /** The same for a mismatch that only some ranks have seen. */
  void announce_mismatch(std::string_view text, Finder finder = Finder::self) noexcept;

  /** Tells all members that this rank has left: its last message. Does not block. */
  void leave() noexcept;
  /** After leave(): whether all other members have left as well, so that no message is under way
   * any more, or nothing can be known of them. */
  bool all_have_left() noexcept;
  /** Those of `ranks` that have left. What they had sent before may still be under way. */
  RecycledVector<int> leavers(std::span<const int> ranks);

  // For an Inquiry.

  const Session& session() const { return session_; }
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
  /** Of a host's leader: sends the other hosts a byte, for their kernels to acknowledge. */
  void ping_hosts();
  /** The hosts whose kernels do not; none for others than leaders. */
  std::vector<int> unreachable_hosts();

 private:
  using Clock = std::chrono::steady_clock;
  // All of these are called with mutex_ held.
  void send_to_all(const ControlMessage& message);
  void receive();
  void handle(const ControlMessage& message, int source);
  void fail(const FailureReport& report);
  void announce(const FailureReport& report, Finder finder);
  void look_after_hosts(Clock::time_point now);
  void throw_failure() const;

  std::vector<int> ranks_out_of_reach() override;

  Session& session_;
  const std::vector<int>& members_;
  int rank_;
  std::function<std::optional<std::uint32_t>(int)> heartbeat_;

  std::mutex mutex_;
  Messenger messenger_;
  std::optional<Layout> layout_;
  std::unique_ptr<Heartbeats> heartbeats_;  // of a host's leader
  Clock::time_point last_look_{};           // at these
  Clock::time_point last_poll_{};
  std::vector<int> leavers_;
  std::optional<FailureReport> failure_;  // the first that was announced
};

}  // namespace tutti::mpi
