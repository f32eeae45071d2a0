// Who waits for whom, among all processes, in whichever communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/recycled.hpp"
#include "comm/failures/control_message.hpp"
#include "comm/failures/control_network.hpp"
#include "comm/own_waits.hpp"

namespace tutti {

/**
 * A wait-for graph that nobody has as a whole: every process knows for whom its own threads wait
 * (see OwnWaits), and says so to those who ask, as long as it waits anywhere. Questions and answers
 * go over the sessions of the process, each by messages of its own, and whoever waits handles those
 * of all. All calls are safe from several threads.
 */
class WaitGraph final : private Correspondent {
 public:
  static WaitGraph& of_this_process();
  /** That of a simulated process. Both outlive it. */
  WaitGraph(const TimeSource& time, OwnWaits& waits);
  WaitGraph(const WaitGraph&) = delete;
  WaitGraph& operator=(const WaitGraph&) = delete;
  ~WaitGraph() override = default;

  const TimeSource& time() const { return time_; }
  OwnWaits& own_waits() { return waits_; }

  /** From now on questions go over `session`, too, until it is removed. */
  void add(ControlNetwork& session, int tag);
  /** Returns whether questions went over it, of which some, or answers, may be on their way. */
  bool remove(const ControlNetwork& session) noexcept;
  /** Who the ranks of `session` are. Until it is known they are asked over this session alone, and
   * they always are if it has no `other_hosts`: its ranks leave it without telling each other. */
  void set_processes(const ControlNetwork& session, std::vector<ProcessNumber> numbers,
                     bool other_hosts);
  /** The numbers of `ranks` of the session, for questions from now on. */
  std::vector<ProcessNumber> numbers_of(const ControlNetwork& session, std::span<const int> ranks);

  /** The calling thread waits for `ranks`, of whom `members` are the session's ranks. Handles the
   * questions and answers that have come in; at most once a millisecond. */
  void poll(ControlNetwork& session, std::span<const int> ranks, std::span<const int> members);
  /** Handles what has come in; whether all of this process' questions and answers have left that go
   * over `session`. */
  bool drain(const ControlNetwork& session);

  /** While it exists, the calling thread is in one call, which may have several waits. One inside
   * of another is part of it. */
  class CallScope {
   public:
    explicit CallScope(WaitGraph& graph = of_this_process());
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    ~CallScope();

   private:
    WaitGraph& graph_;
    bool outermost_;
  };
  /** Bytes of the calling thread's call have moved. */
  void progressed() noexcept;
  /** Whether a call is under way. */
  bool has_calls() noexcept;

  /** An answer, as this process understands it. */
  struct Heard {
    ProcessNumber from;
    int rank;  ///< of the session over which it came
    RecycledVector<ProcessNumber> awaited;
    bool awaits_unknown;  ///< others, too, of whom only `from` knows
    std::chrono::milliseconds idle;
    std::chrono::milliseconds idle_later;
  };
  /** Who asks. What it is told it is told by whichever thread polls, one at a time. */
  class Asker {
   public:
    virtual ~Asker() = default;
    /** Whom to ask next. */
    virtual RecycledVector<ProcessNumber> hear(const Heard& heard) = 0;
    /** There is no session over which `process` could be asked. */
    virtual void cannot_ask(ProcessNumber /*process*/) {}
  };
  /** `session`: over which to ask first, null if any will do. `passed`: when the asker's deadline
   * has passed first, or will. */
  void add(Asker& asker, const ControlNetwork* session,
           std::chrono::steady_clock::time_point passed);
  void remove(const Asker& asker);
  void ask(const Asker& asker, std::span<const ProcessNumber> processes);

  /** Their hosts could not be reached when a deadline of `timeout` passed in a communicator. */
  void note_cut_off(std::span<const ProcessNumber> processes, std::chrono::milliseconds timeout);
  /** Their hosts can be reached after all. */
  void forget_cut_off(std::span<const ProcessNumber> processes);
  /** Those of `processes` of which that was noted in the last `timeout`, after as long a one, and
   * which have said nothing since. */
  RecycledVector<ProcessNumber> cut_off_among(std::span<const ProcessNumber> processes,
                                              std::chrono::milliseconds timeout);
  /** Whether that may be any. */
  bool any_cut_off() const noexcept { return any_cut_off_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  /** The questions and answers that go over one session. */
  struct Line {
    Line(ControlNetwork& of, int tag) : session(&of), messenger(of.messenger(tag)) {}
    ControlNetwork* session;
    std::unique_ptr<Messenger> messenger;
    std::vector<ProcessNumber> numbers;  ///< by rank
    bool other_hosts = false;
    bool broken = false;
    bool used = false;  ///< for any question or answer
  };
  struct CallTimes {
    std::thread::id thread;
    Clock::time_point begun;
    Clock::time_point progress;  ///< long ago if there was none
  };
  struct Inquiry {
    std::uint32_t number;
    Asker* asker;
    const ControlNetwork* session;
    Clock::time_point passed;
  };

  struct CutOff {
    ProcessNumber process;
    std::chrono::milliseconds timeout;
    Clock::time_point noted;
  };

  void listen() override;
  std::function<std::optional<Loss>()> investigate(const Acquaintance& acquaintance,
                                                   std::span<const int> awaited,
                                                   std::chrono::milliseconds timeout) override;

  // With mutex_ held.
  Line& line_of(const ControlNetwork& session);
  /** Those of all sessions over which this thread may speak; `session` is its own. */
  void handle_messages(const ControlNetwork* session);
  void handle_messages(Line& line);
  void erase_cut_off(ProcessNumber process);
  void ask(const Inquiry& inquiry, std::span<const ProcessNumber> processes);
  bool ask(const Inquiry& inquiry, const Question& question, ProcessNumber process);
  void answer(const Question& question, Line& line, int rank);
  Heard understand(const Answer& answer, const Line& line, int rank) const;

  const TimeSource& time_;
  OwnWaits& waits_;
  std::mutex mutex_;
  std::list<Line> lines_;
  ProcessNumber next_stranger_ = Answer::kUnknown;  // numbers of those whose own are not known yet
  std::vector<CallTimes> calls_;                    // under way
  CallTimes last_call_{};                           // of those that have ended, the last to get on
  std::vector<Inquiry> inquiries_;
  std::vector<CutOff> cut_off_;
  std::atomic<bool> any_cut_off_ = false;
  std::uint32_t last_number_;
};

}  // namespace tutti
