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
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "communicator/deadline.hpp"
#include "communicator/mpi/session.hpp"
#include "communicator/recycled.hpp"

namespace tutti::mpi {

/**
 * Messages of fixed size, below every eager limit: "whom do you wait for?", the answer, "these
 * ranks are lost", "these two do not match", and "I have left". They are handled whenever a rank
 * that waits calls poll(). All calls are safe from several threads. Ranks are those of the channel.
 */
class Watch {
 public:
  /** `members` and `session` outlive it. */
  Watch(Session& session, const std::vector<int>& members, int rank, int tag);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /** Messages that are still under way are left to MPI, with their memory. */
  ~Watch();

  /** Handles what has come in. Inquiries are answered with `waiting_for` and what other threads
   * wait for. Throws PeerLost or MismatchError once one was announced. Does something at most once
   * a millisecond. */
  void poll(std::span<const int> waiting_for);
  /** Whether no thread has polled for some time, so that an inquiry may be waiting. */
  bool is_due() const noexcept;
  /** The calling thread waits for nobody any more. */
  void forget() noexcept;

  /** Tells all members that `ranks` are lost, unless a failure is known already; lends MPI a
   * quarter of a second at most. */
  void announce_lost(std::span<const int> ranks, std::string_view reason) noexcept;
  /** The same for a mismatch that only some ranks have seen. */
  void announce_mismatch(std::string_view text) noexcept;

  /** Tells all members that this rank has left: its last message. Does not block. */
  void leave() noexcept;
  /** After leave(): whether all other members have left as well, so that no message is under way
   * any more, or nothing can be known of them. */
  bool all_have_left() noexcept;
  /** Those of `ranks` that have left. What they had sent before may still be under way. */
  RecycledVector<int> leavers(std::span<const int> ranks);

  struct Verdict {
    std::vector<int> ranks;
    bool all_answered = false;  ///< so `ranks` wait for each other, or for this rank
  };

  /**
   * Finds out who keeps this rank waiting: asks `awaited` whom they wait for, those whom they
   * name, and so on. Whoever does not answer is to blame. If all answer and nothing changes, it
   * is `awaited`, who wait in a circle. Needs poll() to be called; ends with the object.
   */
  class Inquiry {
   public:
    Inquiry(Watch& watch, std::span<const int> awaited);
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
    };
    void ask(int rank);
    void hear(int rank, std::span<const std::int32_t> waits_for);

    Watch& watch_;
    std::uint32_t number_;
    std::vector<int> awaited_;
    std::vector<Suspect> suspects_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostRanks = 256;
  static constexpr std::size_t kMostText = 1024;

  struct Message {
    enum class Kind : std::uint32_t { inquiry, answer, lost, mismatch, left };
    Kind kind = Kind::inquiry;
    std::uint32_t number = 0;  ///< of the inquiry, by who makes it
    std::int32_t rank_count = 0;
    std::int32_t text_length = 0;
    std::array<std::int32_t, kMostRanks> ranks{};
    std::array<char, kMostText> text{};

    void set_ranks(std::span<const int> values);
    void set_text(std::string_view value);
    std::span<const std::int32_t> rank_list() const;
    std::string_view text_value() const;
  };
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<Message> message;
    int peer = -1;
  };
  using Pendings = std::list<Pending>;
  struct Waiter {
    std::thread::id thread;
    RecycledVector<int> ranks;
    Clock::time_point seen;
  };

  // All of these are called with mutex_ held.
  void send(const std::shared_ptr<Message>& message, int destination);
  void receive();
  void handle(const Message& message, int source);
  void announce(const std::shared_ptr<Message>& message) noexcept;
  void throw_failure() const;
  void answer(std::uint32_t number, int destination);
  void flush() noexcept;
  int rank_of(int session_rank) const;

  Session& session_;
  const std::vector<int>& members_;
  int rank_;
  int tag_;

  std::mutex mutex_;
  std::vector<Waiter> waiters_;
  std::atomic<Clock::time_point> last_poll_{};
  Pendings outgoing_;
  Pendings incoming_;
  std::vector<int> leavers_;
  std::vector<Inquiry*> inquiries_;
  std::uint32_t last_number_ = 0;
  std::shared_ptr<const Message> failure_;  // the first that was announced
};

}  // namespace tutti::mpi
