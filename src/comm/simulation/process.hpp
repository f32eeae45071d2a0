// Simulated processes, and the cluster that they run on.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "comm/failures/control_network.hpp"
#include "comm/failures/heartbeats.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/layout.hpp"
#include "comm/own_waits.hpp"
#include "comm/simulation/network.hpp"
#include "comm/simulation/scheduler.hpp"

namespace tutti::simulation {

class Cluster;
class SimulatedWire;
struct Parcel;

/** Thrown into the fiber of a process that was killed. */
struct Killed {};

/** Thrown out of a wait that somebody ended. */
struct Interrupted {};

/** One rank: a fiber, whom it waits for, and a session that all ranks share. */
class Process final : public ControlNetwork {
 public:
  Process(Cluster& cluster, int rank);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() override;

  Cluster& cluster() { return cluster_; }
  int host() const { return host_; }
  bool is_killed() const { return killed_; }
  bool is_stopped() const { return task_->is_stopped(); }
  /** Computes, and calls nothing meanwhile. Throws Killed. */
  void compute(Scheduler::Duration time);
  /** Until something comes, at most for `longest`; sooner if control messages wait to be handled.
   * Throws Killed, or Interrupted. */
  void wait(Scheduler::Duration longest);
  /** Ends the wait under way, or else the next one. */
  void interrupt();

  int rank() const override { return rank_; }
  int size() const override;
  std::unique_ptr<Messenger> messenger(int tag) override;
  WaitGraph& wait_graph() override { return graph_; }
  void fail() noexcept override { failed_ = true; }
  void keep() noexcept override { failed_ = true; }
  void note_ended(int rank) override { ended_.insert(rank); }
  /** Of whom that was noted. */
  const std::set<int>& ended() const { return ended_; }
  bool has_failed() const noexcept override { return failed_; }
  bool may_call() const noexcept override { return !killed_; }
  bool this_thread_may_call() const noexcept override { return !killed_; }

 private:
  friend class Cluster;
  friend class SimulatedWire;
  class Mailbox;
  struct Letter {
    std::shared_ptr<const ControlMessage> message;
    int source;
  };

  void come(int tag, Letter letter);
  /** Its fiber, if that sleeps until something comes. */
  void wake(Scheduler::Duration delay);

  Cluster& cluster_;
  int rank_;
  int host_;
  OwnWaits waits_;
  WaitGraph graph_;
  std::map<int, std::deque<Letter>> letters_;  // by tag
  std::size_t unread_ = 0;
  std::map<int, SimulatedWire*> wires_;                            // by context
  std::map<int, std::vector<std::shared_ptr<Parcel>>> too_early_;  // for wires that are to come
  std::set<int> ended_;
  Scheduler::Task* task_ = nullptr;
  bool failed_ = false;
  bool killed_ = false;
  bool interrupted_ = false;
};

/** What was sent so far, in all. */
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  std::int64_t control_messages = 0;
};

/**
 * Hosts with processes. What happens to them is asked for from outside, at some time: see
 * Scheduler::at().
 */
class Cluster {
 public:
  /** `ranks` on each host. Messages of more than `most_copied` bytes travel without their contents:
   * for clusters too large to have them. */
  Cluster(int hosts, int ranks, const NetworkModel& model, std::uint64_t seed,
          std::int64_t most_copied = INT64_MAX);

  Scheduler& scheduler() { return scheduler_; }
  Network& network() { return network_; }
  const Network& network() const { return network_; }
  const Layout& layout() const { return layout_; }
  int size() const { return layout_.rank_count(); }
  Process& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  const Process& process(int rank) const { return *processes_[static_cast<std::size_t>(rank)]; }
  std::int64_t most_copied() const { return most_copied_; }
  Traffic& traffic() { return traffic_; }
  /** So much later than at once a process sees some of what it waits for, but not all, and control
   * messages: fewer turns in large clusters. */
  void set_tick(Scheduler::Duration tick) { tick_ = tick; }
  Scheduler::Duration tick() const { return tick_; }

  /** Before the first message: what leaders, and the ranks of a lane, exchange in collectives
   * travels over connections, which carry messages of any length, in parts: one holds `bytes`
   * bytes, but at least a short message, that its receiver has not taken. Without, each kind of
   * messages has a way of its own, with room for all, and long ones are cut, as over MPI. */
  void set_room(std::int64_t bytes) { room_ = bytes; }
  std::int64_t room() const { return room_; }

  /** Each process runs `body`, which ends when it throws Killed. */
  void start(const std::function<void(Process&)>& body);
  /** A process's connections to other hosts, as connect_hosts() makes them. */
  std::unique_ptr<Heartbeats> connect(Process& process);

  /** Ends a process; its kernel tells those at the other ends of its connections. */
  void kill(int rank);
  void stop(int rank);
  void continue_process(int rank);
  /** A host that is off: its processes are no more, and nobody is told. */
  void crash(int host);
  /** A host's cable. */
  void cut_off(int host);
  void plug_in(int host);

 private:
  friend class Process;
  friend class SimulatedWire;
  class Connection;
  class Line;
  /** What has come to one end of the connections of two hosts. */
  struct End {
    HostConnection::News news;
    bool closed = false;
    int holders = 0;  ///< of the line, here
    bool line_ended = false;
  };

  End& end_of(int host, int peer) { return ends_[{host, peer}]; }
  /** From `host` to the end that `peer` has. */
  void tell_peer(int host, int peer, std::int64_t bytes, std::function<void(End&)> what);
  /** Whether the lines are the leaders' connections: hosts have one rank each. */
  bool share_leaders_connection() const { return layout_.largest_host() == 1; }
  void end_connection(int host, int peer);
  void end_line(int host, int peer);
  /** Since a host was last heard of. */
  std::chrono::milliseconds silence(int host, int peer) const;
  void mute(int rank);

  Scheduler scheduler_;
  Network network_;
  Layout layout_;
  std::int64_t most_copied_;
  Scheduler::Duration tick_{};
  std::int64_t room_ = 0;
  Traffic traffic_;
  std::map<std::pair<int, int>, End> ends_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace tutti::simulation
