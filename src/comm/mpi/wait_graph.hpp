// Who waits for whom, among all processes of a session and in all of its channels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/recycled.hpp"
#include "comm/mpi/control_message.hpp"
#include "comm/mpi/messenger.hpp"

namespace tutti::mpi {

/**
 * A wait-for graph that nobody has as a whole: every process knows for whom its own threads wait,
 * in whichever channel, and says so to those who ask, as long as it waits anywhere. Ranks are the
 * session's. All calls are safe from several threads.
 */
class WaitGraph {
 public:
  /** `session` outlives it. */
  WaitGraph(Session& session, int tag);
  WaitGraph(const WaitGraph&) = delete;
  WaitGraph& operator=(const WaitGraph&) = delete;
  ~WaitGraph() = default;

  /** The calling thread waits for `ranks`, of whom `members` are the session's ranks. Handles the
   * questions and answers that have come in; at most once a millisecond. */
  void poll(std::span<const int> ranks, std::span<const int> members);
  /** Whether no thread has polled for some time, so that a question may be waiting. */
  bool is_due() const noexcept;
  /** The calling thread waits for nobody any more. */
  void forget() noexcept;
  /** Handles what has come in; whether all of this process' questions and answers have left. */
  bool drain();

  /** While it exists, the calling thread is in one call, which may have several waits. One inside
   * of another is part of it. */
  class CallScope {
   public:
    explicit CallScope(WaitGraph& graph);
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    ~CallScope();

   private:
    WaitGraph& graph_;
    bool outermost_;
  };
  /** Bytes of the calling thread's call have moved. */
  void progressed() noexcept;

  /** Who asks. */
  class Asker {
   public:
    virtual ~Asker() = default;
    /** An answer by `rank`; whom to ask next. Called by whichever thread polls, one at a time. */
    virtual RecycledVector<int> hear(int rank, const Answer& answer) = 0;
  };
  /** Who knows which hosts do not answer; called when somebody asks. */
  class Lookout {
   public:
    virtual ~Lookout() = default;
    /** A rank on each. Those that it did not know of yet it will know of a moment later. */
    virtual std::vector<int> ranks_out_of_reach() = 0;
  };
  /** `passed`: when its deadline has passed first, or will. */
  void add(Asker& asker, std::chrono::steady_clock::time_point passed);
  void remove(const Asker& asker);
  void ask(const Asker& asker, std::span<const int> ranks);
  void add(Lookout& lookout);
  void remove(const Lookout& lookout);

 private:
  using Clock = std::chrono::steady_clock;

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
  struct Inquiry {
    std::uint32_t number;
    Asker* asker;
    Clock::time_point passed;
  };

  // With mutex_ held.
  void handle_messages();
  void ask(const Inquiry& inquiry, std::span<const int> ranks);
  void answer(const Question& question, int rank);

  Session& session_;
  std::mutex mutex_;
  Messenger messenger_;
  std::vector<Waiter> waiters_;
  std::atomic<Clock::time_point> last_poll_{};
  std::vector<CallTimes> calls_;  // under way
  CallTimes last_call_{};         // of those that have ended, the last to get on
  std::vector<Inquiry> inquiries_;
  std::vector<Lookout*> lookouts_;
  std::uint32_t last_number_;
};

}  // namespace tutti::mpi
