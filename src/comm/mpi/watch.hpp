// The control messages of a channel: who waits for whom, and who is lost.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/recycled.hpp"
#include "comm/failure.hpp"
#include "comm/mpi/control_message.hpp"
#include "comm/mpi/heartbeats.hpp"
#include "comm/mpi/session.hpp"

namespace tutti::mpi {

/**
 * Messages below every eager limit: "whom do you wait for?", the answer, "these ranks are lost",
 * "these two do not match", and "I have left". They are handled whenever a rank that waits calls
 * poll(). All calls are safe from several threads. Ranks are those of the channel.
 *
 * The leader of a host also looks at its connections to other hosts, and news of a failure go over
 * these as well: they arrive without anybody calling MPI.
 */
class Watch {
 public:
  /** `members` and `session` outlive it. */
  Watch(Session& session, const std::vector<int>& members, int rank, int tag);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /** Messages that are still under way are left to MPI, with their memory. */
  ~Watch();

  /** Before the first wait: which ranks share a host; for its leader, the connections to the
   * others. */
  void set_hosts(const Layout& layout, std::unique_ptr<Heartbeats> heartbeats);

  /** Handles what has come in. Inquiries are answered with `waiting_for` and what other threads
   * wait for. Throws PeerLost or MismatchError once one was announced. Does something at most once
   * a millisecond. */
  void poll(std::span<const int> waiting_for);
  /** Whether no thread has polled for some time, so that an inquiry may be waiting. */
  bool is_due() const noexcept;
  /** The calling thread waits for nobody any more. */
  void forget() noexcept;

  /** While it exists, the calling thread is in one call, which may have several waits. One inside
   * of another is part of it. */
  class Call {
   public:
    explicit Call(Watch& watch);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call();

   private:
    Watch& watch_;
    bool outermost_;
  };
  /** Bytes of the calling thread's call have moved. */
  void progressed() noexcept;

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

  /** What an inquiry found out: whom to blame, or that one who keeps this rank waiting has got on
   * itself, `idle` ago. */
  struct Verdict {
    Loss loss;  ///< without ranks if there is nobody to blame
    std::chrono::milliseconds idle{0};
  };

  /**
   * Finds out who keeps this rank waiting: asks `awaited` whom they wait for, those whom they
   * name, and so on. Whoever does not answer is to blame, or its host, if it cannot be reached. If
   * all answer, and for `timeout` none of them has got on with a call that it had begun by
   * `first_passed`, when the deadline passed first, it is the first who went on to other calls, or
   * else `awaited`, who wait in a circle. Needs poll() to be called; ends with the object.
   */
  class Inquiry {
   public:
    Inquiry(Watch& watch, std::span<const int> awaited, std::chrono::milliseconds timeout,
            std::chrono::steady_clock::time_point first_passed);
    Inquiry(const Inquiry&) = delete;
    Inquiry& operator=(const Inquiry&) = delete;
    ~Inquiry();
    /** Nothing as long as answers may come. */
    std::optional<Verdict> verdict();

   private:
    friend class Watch;
    struct Suspect {
      int rank;
      Deadline patience;
      bool answered = false;
      bool goes_on = false;  ///< with other calls
    };
    void ask(int rank);
    Question question() const;
    void hear(int rank, const Answer& answer);
    std::vector<int> unreachable() const;
    Loss blame(std::vector<int> silent) const;

    Watch& watch_;
    std::uint32_t number_;
    std::vector<int> awaited_;
    std::chrono::milliseconds timeout_;
    std::vector<Suspect> suspects_;
    bool asked_twice_ = false;
    std::vector<int> told_;          // the hosts that this host's leader cannot reach
    std::optional<Deadline> later_;  // when the leader is asked again: it needs a moment to know
    std::chrono::steady_clock::time_point first_passed_;  // the deadline
    std::chrono::steady_clock::time_point last_progress_;
  };

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<ControlMessage> message;
    int peer = -1;
  };
  using Pendings = std::list<Pending>;
  struct Waiter {
    std::thread::id thread;
    RecycledVector<int> ranks;
    Clock::time_point seen;
  };

  struct CallTimes {
    std::thread::id thread;
    Clock::time_point begun;
    Clock::time_point progress;  ///< long ago if there was none
  };

  // All of these are called with mutex_ held.
  void send(const ControlMessage& message, int destination);
  void send_to_all(const ControlMessage& message);
  void receive();
  void handle(const ControlMessage& message, int source);
  void fail(const FailureReport& report);
  void announce(const FailureReport& report, Finder finder);
  void look_after_hosts(Clock::time_point now);
  void throw_failure() const;
  void answer(const Question& question, int destination);
  void flush() noexcept;
  int rank_of(int session_rank) const;
  int leader_of_host() const;

  Session& session_;
  const std::vector<int>& members_;
  int rank_;
  int tag_;

  std::mutex mutex_;
  std::optional<Layout> layout_;
  std::unique_ptr<Heartbeats> heartbeats_;  // of a host's leader
  Clock::time_point last_look_{};           // at these
  std::vector<Waiter> waiters_;
  std::atomic<Clock::time_point> last_poll_{};
  std::vector<CallTimes> calls_;  // under way
  CallTimes last_call_{};         // of those that have ended, the last to get on
  Pendings outgoing_;
  Pendings incoming_;
  std::vector<int> leavers_;
  std::vector<Inquiry*> inquiries_;
  std::uint32_t last_number_ = 0;
  std::optional<FailureReport> failure_;  // the first that was announced
};

}  // namespace tutti::mpi
