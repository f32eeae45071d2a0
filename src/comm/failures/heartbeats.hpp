// Connections between hosts that show, by the kernels' own signs of life, who is gone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time_source.hpp"
#include "comm/failure.hpp"
#include "comm/layout.hpp"

namespace tutti {

/** All ranks of `hosts`, none of which answers. */
Loss loss_of_hosts(const Layout& layout, std::span<const int> hosts);

/** The other hosts to which the leader of host `own` of `hosts` has connections, in ascending
 * order. Symmetric. All, if they are few, or else those whose distance is a power of two, either
 * way round: 2 log2(hosts) of them, and what they pass on is everywhere after log2(hosts) steps. */
std::vector<int> connected_hosts(int own, int hosts);
/** Whether `hosts` are few: each has a connection to each other one. */
bool all_are_connected(int hosts);
/** Whether two of `hosts`, which stand in a ring, are next to each other. */
bool are_neighbours(int one, int other, int hosts);
/** How long nothing travels over a connection of two of `hosts` before the kernels exchange a sign
 * of life: a second, if these are few or the two are neighbours; else as long as a host has
 * connections, in seconds, so that it sends as many signs of life a second with any number. */
std::chrono::seconds sign_of_life_after(int own, int other, int hosts);

/**
 * The connection of two leaders. The kernels exchange signs of life over it where nothing else
 * travels (see sign_of_life_after()): so a process that is stopped or computes is not taken for
 * dead, and a process that ends ends its connections. TCP is one implementation, the simulation
 * another.
 */
class HostConnection {
 public:
  /** What has come since the last call, and how the connection is then. */
  struct News {
    enum class State : std::uint8_t { open, ended, timed_out };
    State state = State::open;
    bool goodbye = false;
    std::optional<FailureReport> failure;
  };

  virtual ~HostConnection() = default;
  virtual News receive() = 0;
  /** That this process ends its part, and is not to be taken for dead. */
  virtual void say_goodbye() noexcept = 0;
  /** The other end gets it even if this process ends. */
  virtual void tell(const FailureReport& failure) noexcept = 0;
  /** Once it has ended: whether all processes of the other end's host have. */
  virtual bool all_have_ended() const = 0;
};

/**
 * A connection of two hosts that all their ranks hold until they leave: it says whether the other
 * host can be reached, whatever its processes do, and ends with the last of them. Nobody reads what
 * comes over it.
 */
class HostLine {
 public:
  virtual ~HostLine() = default;
  /** Sends a byte for the other end's kernel to acknowledge; whether it could. */
  virtual bool ping() noexcept = 0;
  /** Whether that kernel has acknowledged anything since this process's last ping(). */
  virtual bool has_answered() const = 0;
  /** Since the other end was last heard of; 0 once all of that host have left. */
  virtual std::chrono::milliseconds silence() const = 0;
  /** Whether all of that host have left, as far as was heard. */
  virtual bool has_ended() const = 0;
};

/** What the lines to other hosts tell and, if this rank is a host's leader, its lowest rank, the
 * connections to their leaders. Ranks are the channel's. Not thread-safe. */
class Heartbeats {
 public:
  struct Connection {
    int host;
    std::unique_ptr<HostConnection> link;  ///< none once it is of no more use
    bool goodbye = false;
    std::optional<TimeSource::Clock::time_point> ended{};  ///< when that was seen
    std::optional<TimeSource::Clock::time_point>
        all_ended{};  ///< likewise, of its host's processes
  };
  struct Line {
    int host;
    std::unique_ptr<HostLine> line;
    std::optional<TimeSource::Clock::time_point> pinged{};  ///< if that may still be answered
    bool answered = false;               ///< the last ping(), as far as was looked
    TimeSource::Clock::duration took{};  ///< the answer to an earlier ping()
    bool timed_out = false;              ///< the leaders' connection has
  };

  using HasLeft = std::function<bool(int rank)>;
  /** A failure, and whether another host has found it, and tells all ranks. */
  struct Found {
    FailureReport failure{};
    bool by_another = false;
  };

  /** Of a rank of host `own_host`; `connections` if it is the leader. `time` outlives it. */
  Heartbeats(Layout layout, int own_host, std::vector<Connection> connections,
             std::vector<Line> lines, const TimeSource& time = TimeSource::system());
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;
  /** Says goodbye, so that nobody takes this process for dead. */
  ~Heartbeats();

  /** What a connection tells: a failure that another host has found, the processes that have ended
   * (a leader's, or all of its host but those that have left), or the hosts that do not answer:
   * among many, of most of which it seldom hears, once it has asked all. */
  std::optional<Found> look(const HasLeft& has_left);
  /** The ranks whose processes have ended, as far as look() has seen: also those that it does not
   * call lost yet. */
  const std::vector<int>& ended() const { return ended_; }
  /** Tells the other hosts. They get it even if this process ends. */
  void tell(const FailureReport& failure) noexcept;

  /** Sends a byte to every host, for their kernels to acknowledge. */
  void ping() noexcept;
  /** The hosts whose kernels do not, a moment after ping(), or twice as long after it as they took
   * before, behind a slow wire, or which were not heard of lately. All
   * other hosts, if that is all of several to which there are lines. */
  std::vector<int> unreachable() const;

 private:
  /** Notes how long kernels take to acknowledge a byte. */
  void look_at_answers();
  /** Whether it is known which hosts do not answer, after a connection has timed out. */
  bool knows_silent() const;
  /** How long line.host may have been silent before it counts as lost. */
  std::chrono::milliseconds longest_silence(const Line& line) const;
  /** Adds to `lost` whose processes have ended, once that is known. */
  void look_at_end(Connection& connection, const HasLeft& has_left, std::vector<int>& lost);

  Layout layout_;
  int own_host_;
  std::vector<Connection> connections_;
  std::vector<Line> lines_;
  std::vector<int> ended_;
  std::optional<TimeSource::Clock::time_point> timed_out_;  ///< a connection, as was seen last
  const TimeSource& time_;
};

}  // namespace tutti
