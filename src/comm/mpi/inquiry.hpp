// Finds out who keeps a rank waiting.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/recycled.hpp"
#include "comm/mpi/heartbeats.hpp"
#include "comm/mpi/wait_graph.hpp"
#include "comm/mpi/watch.hpp"

namespace tutti::mpi {

/** What an inquiry found out: whom to blame, or that one who keeps this rank waiting has got on
 * itself, `idle` ago. */
struct Verdict {
  Loss loss;  ///< without ranks if there is nobody to blame
  std::chrono::milliseconds idle{0};
};

/**
 * Walks through the session's WaitGraph: asks those who are awaited whom they wait for, in
 * whichever channel, those whom they name, and so on. Whoever does not answer is to blame, or its
 * host, if it cannot be reached. Who is no member of the channel cannot be blamed in it: who waits
 * for it there will find the same, and give up. If all answer, and for `timeout` none of them has
 * got on with a call that it had begun by `passed`, when the deadline passed first, it is the first
 * who went on to other calls, or else `awaited`, who wait in a circle. Needs Watch::poll() to be
 * called; ends with the object.
 */
class Inquiry final : private WaitGraph::Asker {
 public:
  /** `awaited`: ranks of the channel that `watch` looks after. */
  Inquiry(Watch& watch, std::span<const int> awaited, std::chrono::milliseconds timeout,
          std::chrono::steady_clock::time_point passed);
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;
  ~Inquiry() override;
  /** Nothing as long as answers may come. */
  std::optional<Verdict> verdict();

 private:
  using Clock = std::chrono::steady_clock;

  struct Suspect {
    int rank;  ///< of the session
    Deadline deadline;
    bool answered = false;
    bool goes_on = false;  ///< with other calls
  };

  RecycledVector<int> hear(int rank, const Answer& answer) override;
  // With mutex_ held.
  void suspect(int rank, RecycledVector<int>& fresh);
  /** The verdict so far; whom to ask again. */
  std::optional<Verdict> judge(RecycledVector<int>& again);
  Verdict blame(const std::vector<int>& silent) const;
  int leader_of_host() const;

  Watch& watch_;
  WaitGraph& graph_;
  std::vector<int> awaited_;
  std::chrono::milliseconds timeout_;
  bool asks_leader_;  // for hosts that it cannot reach

  std::mutex mutex_;
  std::vector<Suspect> suspects_;
  bool asked_twice_ = false;
  std::vector<int> told_;          // a rank each on the hosts that this host's leader cannot reach
  std::optional<Deadline> later_;  // when the leader is asked again: it needs a moment to know
  Clock::time_point last_progress_;
};

}  // namespace tutti::mpi
