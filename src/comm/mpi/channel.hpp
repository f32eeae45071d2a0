// Non-blocking messages between ranks over MPI, with deadlines and a watch on the peers.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/mpi/scratch.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/wait_graph.hpp"
#include "comm/mpi/watch.hpp"

namespace tutti::mpi {

/**
 * Point-to-point messages among the ranks of one communicator. Ranks are its global ranks.
 *
 * MPI does not report a dead peer, so every request is polled to a deadline. While a rank waits it
 * also answers control messages: a rank whose deadline passed asks those it waits for whom *they*
 * wait for, follows the answers, and blames those that do not answer. Whoever learns that a rank
 * is lost tells every other rank, and all of them throw the same PeerLost.
 *
 * Used by one collective, one send and one recv at a time, each from any thread.
 */
class Channel {
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
  ~Channel() = default;

  /**
   * Ends a channel whose owner is gone: members that still wait for this one get PeerLost. Waits
   * for nobody. The channel and its session stay until all members have left: MPI gives the number
   * of a freed communicator to the next one, and messages that come late along with it. At exit
   * they get a second more to do so, since MPI is not to be finalised with messages under way.
   */
  static void leave(std::unique_ptr<Channel> channel) noexcept;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::shared_ptr<Session>& session() const { return session_; }
  /** The session's ranks by this channel's ranks. */
  const std::vector<int>& members() const { return members_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /** For collectives. */
  ScratchPool& scratch() { return scratch_; }
  /** What this rank's collectives have sent so far, in bytes of their messages. */
  std::int64_t bytes_sent() const { return bytes_sent_; }

  /** Tells which ranks share a host, before the first wait; a collective of the hosts' leaders, who
   * connect (see Heartbeats). Throws PeerLost. */
  void set_hosts(const Layout& layout);

  /** Called about once a millisecond by waits that last; what it throws ends the wait. For whoever
   * has other peers to look after. Set before the first wait. */
  void set_idle(std::function<void()> idle) { idle_ = std::move(idle); }

  /**
   * What travels: streams do not mix. `reply` goes from the receiver of a point-to-point message
   * back to its sender, so that it is not taken for a message of its own.
   */
  enum class Traffic : std::uint8_t { collective, point_to_point, reply };

  /** Open MPI sends up to 64 KiB, its header included, over TCP without asking first. */
  static constexpr std::int64_t kPiece = std::int64_t{60} * 1024;
  /** Pieces of a message that are under way: eight reach 0.95 of a wire of 1 Gbit/s; two of 256
   * KiB, which ask, reach 0.82. */
  static constexpr std::int64_t kUnderWay = 8;

  /**
   * Requests that are waited for together. Leaving it by an exception before wait() has ended
   * fails the channel; receives that have not begun are cancelled, the other requests are left to
   * MPI, which may still touch their memory.
   */
  class Batch {
   public:
    Batch(Channel& channel, Traffic traffic) : channel_(channel), traffic_(traffic) {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    ~Batch();
    /** Any size: messages of more than kPiece bytes travel in pieces, of which a few are under way
     * at a time; a batch has one of them for each peer and direction. Nothing travels for 0 bytes.
     * Memory stays put until wait() has ended. */
    void send(const void* data, std::int64_t bytes, int destination);
    void recv(void* data, std::int64_t bytes, int source);
    /** Shares memory of the messages: it lives on if requests are left to MPI. */
    void keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
    /** Blocks until all are done. The deadline starts anew with every piece that arrives or
     * leaves, and is put off while ranks that keep this one waiting get on with calls that they had
     * begun when it passed first. PeerLost naming the culprits, or what the idle function throws.
     */
    void wait() { wait(channel_.timeout_); }
    /** With another deadline than the channel's. */
    void wait(std::chrono::milliseconds timeout);

   private:
    struct Peer {
      int rank;
      bool receives;
      std::int32_t message = -1;  ///< its number, if it has more pieces than are under way
    };
    /** What is left of a message. */
    struct Rest {
      std::byte* data;
      std::int64_t bytes;
    };
    void begin(std::byte* data, std::int64_t bytes, Peer peer);
    void post(Rest& rest, Peer peer);
    bool test();
    void abandon() noexcept;
    RecycledVector<int> awaited() const;

    Channel& channel_;
    Traffic traffic_;
    RecycledVector<MPI_Request> requests_;
    RecycledVector<Peer> peers_;  // of each request
    RecycledVector<Rest> rests_;  // by the number of the message
    RecycledVector<int> done_;    // what MPI_Testsome reports
    RecycledVector<MPI_Status> statuses_;
    RecycledVector<std::shared_ptr<const void>> kept_;
  };

  /** While it exists, what the calling thread does here is one call (see Batch::wait()). */
  class CallScope {
   public:
    explicit CallScope(Channel& channel) : call_(channel.session_->wait_graph()) {}

   private:
    WaitGraph::CallScope call_;
  };

  /**
   * Answers control messages; throws PeerLost if one says that a rank is lost. Also called by
   * whoever waits for something else, with the ranks it waits for, at least every 100 ms. Cheap;
   * does not block.
   */
  void poll(std::span<const int> waiting_for) { watch_.poll(waiting_for); }

  /** poll(), and the idle function. */
  void look_around(std::span<const int> waiting_for);

  /** `overdue` after the deadline of a wait that is not the channel's: finds out which of
   * `suspects` have stopped, or that they wait for each other, and throws PeerLost; returns if one
   * who keeps them waiting has got on in the meantime. Blocks for a second or two. */
  void investigate(std::span<const int> suspects, std::chrono::milliseconds overdue);
  /** The same for a wait whose deadline is to pass in inquiry_lead(): begins at once; what it
   * returns is to be called after the deadline, now and then, and throws PeerLost. Somebody polls
   * meanwhile. */
  std::function<void()> investigation(std::span<const int> suspects);

  /**
   * Tells every member that `ranks` are lost, so that they stop waiting, unless a loss is known
   * already. Blocks the finder for a quarter of a second at most. From now on the channel is
   * failed: it is not freed, and MPI is not finalised by tutti.
   */
  void announce_lost(std::span<const int> ranks, std::string_view reason,
                     Finder finder = Finder::self) noexcept {
    watch_.announce_lost(ranks, reason, finder);
  }
  /** The same for a mismatch that only some members have seen. */
  void announce_mismatch(std::string_view text, Finder finder = Finder::self) noexcept {
    watch_.announce_mismatch(text, finder);
  }
  /** Marks the channel failed without a message, for errors that all members saw. */
  void fail() noexcept { session_->fail(); }

 private:
  class Departed;
  [[noreturn]] void lose(std::vector<int> ranks, const std::string& reason);
  /** Whether the next `bytes` bytes to `destination` are to be waited for until it takes them. */
  bool is_to_be_confirmed(std::int64_t bytes, int destination);
  int tag(Traffic traffic) const { return first_tag_ + static_cast<int>(traffic); }

  std::shared_ptr<Session> session_;
  std::vector<int> members_;
  int first_tag_;
  std::chrono::milliseconds timeout_;
  int rank_;
  std::function<void()> idle_;
  ScratchPool scratch_;
  std::atomic<std::int64_t> bytes_sent_ = 0;
  std::vector<std::atomic<std::int64_t>> unconfirmed_;  // bytes, by rank
  Watch watch_;
};

}  // namespace tutti::mpi
