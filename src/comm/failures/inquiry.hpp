// Finds out who keeps a rank waiting.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/recycled.hpp"
#include "comm/failures/heartbeats.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/failures/watch.hpp"
#include "comm/own_waits.hpp"
#include "comm/wire.hpp"

namespace tutti {

/** What an inquiry found out: whom to blame, or that one who keeps this rank waiting has got on
 * itself, `idle` ago. */
struct Verdict {
  Loss loss;  ///< without ranks if there is nobody to blame
  std::chrono::milliseconds idle{0};
  bool cut_off = false;  ///< whether the hosts of those to blame cannot be reached
};

/**
 * Walks through the WaitGraph: asks those who are awaited whom they wait for, in whichever
 * communicator, those whom they name, and so on. Whoever does not answer is to blame, or its host,
 * if it cannot be reached; but for a rank of this host whose heartbeat moves. Who is no member of
 * the communicator cannot be blamed in it: who waits for it elsewhere will find the same, and give
 * up. In a collective, of another host all ranks are asked, and if none of them answers, all are to
 * blame; who waits for a message waits for nobody beside its sender, who may compute. If all
 * answer, and for `timeout` none of them has got on with a call that it had begun by `passed`, when
 * the deadline passed first, it is the first who went on to other calls, or else `awaited`, who
 * wait in a circle. Where the trace leads to processes that share no session with this one, those
 * who do have a deadline longer to find out. Needs WaitGraph::poll() or listen() to be called; ends
 * with the object.
 */
class Inquiry final : private WaitGraph::Asker {
 public:
  /** `awaited`: ranks of the communicator, in a wait of `side`. `watch`: who looks after it, if it
   * spans hosts. */
  Inquiry(Acquaintance acquaintance, WaitGraph& graph, Watch* watch, Wire::Side side,
          std::span<const int> awaited, std::chrono::milliseconds timeout,
          std::chrono::steady_clock::time_point passed);
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;
  ~Inquiry() override;
  /** Nothing as long as answers may come. */
  std::optional<Verdict> verdict();

 private:
  using Clock = std::chrono::steady_clock;

  struct Suspect {
    ProcessNumber process;
    int rank;  ///< -1 if it is no member
    std::optional<std::uint32_t> heartbeat;
    Deadline deadline;
    bool neighbour = false;  ///< of one who is suspected, and no suspect itself
    bool answered = false;
    bool goes_on = false;  ///< with other calls
  };

  RecycledVector<ProcessNumber> hear(const WaitGraph::Heard& heard) override;
  void cannot_ask(ProcessNumber process) override;
  Suspect suspect_of(ProcessNumber process) const;
  /** Once: those that answered at first may have been cut off since. */
  void ping_hosts_again();
  /** For calls in other communicators: see Watch::ask_the_cut_off_again(). */
  void note_cut_off(std::span<const int> ranks);
  // With mutex_ held.
  void suspect(ProcessNumber process, RecycledVector<ProcessNumber>& fresh);
  /** The other ranks of the host of `rank`, unless it is this one's; in a collective. */
  void ask_neighbours(int rank, RecycledVector<ProcessNumber>& fresh);
  /** `silent`, and the ranks of the hosts of which nobody has answered. */
  std::vector<int> with_silent_hosts(const std::vector<int>& silent) const;
  bool is_alive(const Suspect& suspect) const;
  /** The verdict so far; whom to ask again. */
  std::optional<Verdict> judge(RecycledVector<ProcessNumber>& again);
  Verdict judge_those_who_answered() const;
  Verdict blame(const std::vector<int>& silent) const;
  int rank_of(ProcessNumber process) const;

  WaitGraph& graph_;
  const TimeSource& time_ = graph_.time();
  Acquaintance acquaintance_;
  Watch* watch_;
  Wire::Side side_;
  std::vector<int> awaited_;
  std::chrono::milliseconds timeout_;
  Clock::time_point passed_;
  std::optional<Deadline> ping_;  ///< until hosts are pinged again, if they were not

  std::mutex mutex_;
  std::vector<Suspect> suspects_;
  bool asked_twice_ = false;
  bool closed_ = false;      // some of them wait for this process
  bool leads_away_ = false;  // to processes that cannot be asked
  Clock::time_point last_progress_;
};

/** Inquiries of a collective, one after the other, until one finds somebody to blame. */
class Investigation {
 public:
  /** A deadline of `timeout` passes in inquiry_lead(). The rest as of Inquiry. */
  Investigation(Acquaintance acquaintance, WaitGraph& graph, Watch* watch,
                std::span<const int> awaited, std::chrono::milliseconds timeout);
  /** Called now and then: whom to blame, once that is known. */
  std::optional<Loss> look();

 private:
  void begin() {
    inquiry_.emplace(acquaintance_, graph_, watch_, Wire::Side::collective, awaited_, timeout_,
                     passed_);
  }

  Acquaintance acquaintance_;
  WaitGraph& graph_;
  Watch* watch_;
  std::vector<int> awaited_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point passed_;
  std::optional<Inquiry> inquiry_;
};

}  // namespace tutti
