// The simulated wires: how long bytes take between hosts, and which of them get there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/simulation/scheduler.hpp"

namespace tutti::simulation {

/** What all links have in common. */
struct NetworkModel {
  using Duration = Scheduler::Duration;
  Duration latency = std::chrono::microseconds(10);  ///< from host to host
  Duration jitter{};                                 ///< at most so much more, drawn evenly
  Duration overhead{};  ///< of a message, on the sender's link and the receiver's
  double bytes_per_second = 12.5e9;
  Duration latency_inside = std::chrono::microseconds(1);  ///< between processes of a host
};

/**
 * Hosts on one switch that is never full: a message takes its time on the sender's link, one after
 * the other, then the latency, then on the receiver's link, which overlaps as far as that is free.
 * So one message of n bytes takes alpha + beta n. What one rank sends to another on one lane
 * arrives in order; what cannot get there is kept until it can, as TCP does.
 */
class Network {
 public:
  using Duration = Scheduler::Duration;
  using Time = Scheduler::Time;

  Network(Scheduler& scheduler, NetworkModel model, int hosts, std::uint64_t seed);

  const NetworkModel& model() const { return model_; }
  /** Sends `bytes` bytes; `lane` tells kinds of messages apart. When the last of them will have
   * left; arrived() happens once all are there. */
  Time send(int from, int to, std::int64_t bytes, std::uint64_t lane,
            std::function<void()> arrived);

  /** The link of a host takes `factor` times as long from now on. */
  void slow_down(int host, double factor);
  /** Nothing passes between two hosts, until heal(). */
  void cut(int one, int other);
  void heal(int one, int other);
  /** From `begin` to `end`, the longest time that what was under way on a slow link still took. */
  Duration longest_queue(int host, Time begin, Time end) const;
  /** Since when nothing passes from one host to another. */
  std::optional<Time> cut_since(int one, int other) const;

 private:
  /** From when on a link was known to be busy until when. */
  struct Queue {
    Time since;
    Time until;
  };
  struct Link {
    double nanoseconds_per_byte;
    Time out_free{};
    Time in_free{};
    bool is_slow = false;
    std::vector<Queue> queues{};  ///< of one that is slow, in the order of time
  };
  struct Transfer {
    int from;
    int to;
    std::int64_t bytes;
    Time left;
    std::function<void()> arrived;
  };
  Duration time_of(const Link& link, std::int64_t bytes) const;
  void reach(Transfer* transfer);
  void note_queue(Link& link, Time until) const;
  static std::pair<int, int> pair_of(int one, int other) { return std::minmax(one, other); }

  Scheduler& scheduler_;
  NetworkModel model_;
  std::vector<Link> links_;
  std::map<std::pair<int, int>, Time> cuts_;
  std::vector<Transfer*> held_;
  std::unordered_map<std::uint64_t, Time> last_;  // when the head of a lane's last message came
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Transfer*> free_;
  std::mt19937_64 draws_;
};

}  // namespace tutti::simulation
