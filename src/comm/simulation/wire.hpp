// The simulated network as a Wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/failures/watch.hpp"
#include "comm/scratch.hpp"
#include "comm/simulation/process.hpp"
#include "comm/wire.hpp"

namespace tutti::simulation {

/** A message on its way, or a part of one: what it carries is there once it has left. */
struct Parcel {
  SimulatedWire* sender;  ///< null once it has left, or will not
  Wire::Posted send;
  const std::byte* data;
  std::int64_t bytes;
  int source;
  int destination;
  int context;
  Wire::Traffic traffic;
  std::int64_t before = 0;   ///< bytes of the message that travel in parts before,
  std::int64_t behind = 0;   ///< and behind
  std::int64_t missing = 0;  ///< the last bytes, while the sender receives what it is to send on
  bool dropped = false;
  std::vector<std::byte> contents{};
};

/**
 * Messages of simulated processes, with the same watch on the peers as over MPI. The bytes of a
 * send are read when the last of them leaves the host, those of a receive are written when the last
 * of them arrives: who touches them in between is found out. Used by the fiber of its process.
 */
class SimulatedWire final : public Wire {
 public:
  /** Of all ranks of the cluster; `context` tells it from other wires of the process. */
  SimulatedWire(Process& process, int context, std::chrono::milliseconds timeout);
  SimulatedWire(const SimulatedWire&) = delete;
  SimulatedWire& operator=(const SimulatedWire&) = delete;
  ~SimulatedWire() override;

  /** Before the first wait; connects the leaders of the hosts. */
  void connect();
  Watch& watch() { return watch_; }
  /** Says that this rank has left, and looks for a second whether all have. */
  void leave();

  int rank() const override { return process_.rank(); }
  int size() const override { return process_.size(); }
  std::int64_t longest(int peer, Traffic traffic) const override {
    return traffic != Traffic::ahead && has_connection(peer, traffic) ? kWholePiece : kPiece;
  }
  Posted post_send(const std::byte* data, std::int64_t bytes, int destination,
                   Traffic traffic) override;
  Posted post_receive(std::byte* data, std::int64_t bytes, int source, Traffic traffic) override;
  bool is_fast() const override;
  bool passes_on(std::span<const int> ranks) const override;
  Passed post_passed(std::byte* data, std::int64_t bytes, int source, int destination,
                     Traffic traffic) override;
  using Wire::take;
  std::optional<int> take(std::byte* data, std::int64_t bytes, Traffic traffic, int source,
                          std::span<const int> except) override;
  bool has_read(int source, Traffic traffic) override;
  bool progress(std::span<Posted> posted, std::span<const int> peers) override;
  bool pause(Clock::duration still, Side side) override;
  void withdraw(Posted receive) override;
  Clock::time_point now() const override;
  std::unique_ptr<Lookout> look_out(Side side, std::chrono::milliseconds timeout) override {
    return watch_.look_out(side, timeout);
  }
  void abandon(Traffic traffic, std::span<Posted> receives, std::span<const Posted> sends,
               std::span<const std::shared_ptr<const void>> kept) noexcept override;
  std::chrono::milliseconds timeout() const override { return timeout_; }
  ScratchPool& scratch() override { return scratch_; }
  MessageCounts& counts() override { return watch_.counts(); }
  std::int64_t bytes_sent() const override { return bytes_sent_; }

  /** What has not left does not leave, and nothing is received any more. */
  void drop_all();

 private:
  struct Operation {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    bool ended = false;
    bool begun = false;                ///< of a receive: a part of the message has come
    std::uint64_t wait = 0;            ///< the last progress() that found it under way
    std::optional<int> too_long{};     ///< who has sent more than there is room for
    std::shared_ptr<Parcel> passed{};  ///< of a receive: what sends it on
  };
  using Parcels = std::deque<std::shared_ptr<Parcel>>;
  struct Wanted {
    Posted receive;
    Traffic traffic;
  };
  /** This rank's end of a connection to another rank of its lane: see Cluster::set_room(). */
  struct Connection {
    Parcels waiting;             ///< messages to be sent, or what is left of them
    std::int64_t under_way = 0;  ///< bytes that the other rank has not received
    std::deque<Wanted> wanted;
    Parcels come;
  };
  /** What one rank has sent of one kind, or this one wants of it: never both. */
  struct Queue {
    std::deque<Posted> wanted;
    Parcels come;
  };

  // Of connections:
  static int column_of(Traffic traffic) { return traffic == Traffic::ahead ? 1 : 0; }
  static bool goes_by_connection(Traffic traffic);
  /** All that this rank will ever have. */
  void make_connections();
  /** The one that carries it; null if there is none. */
  Connection* connection_to(int peer, Traffic traffic);
  bool has_connection(int peer, Traffic traffic) const;
  void push(Connection& connection);
  /** Gives what has come to those who want it, in order. */
  void pull(Connection& connection);
  void move_all();
  std::optional<int> take_from(Connection& connection, std::byte* data, std::int64_t bytes,
                               Traffic traffic);
  /** This rank has received it, so there is room for more. */
  void make_room(const Parcel& parcel);

  std::shared_ptr<Parcel> new_parcel(const std::byte* data, std::int64_t bytes, int destination,
                                     Traffic traffic);
  /** Sends on what has come, and no connection carries. */
  void transmit(const std::shared_ptr<Parcel>& parcel);
  int copy_out(const Parcel& parcel, std::byte* data, std::int64_t bytes);
  void post_receive(Posted posted, int source, Traffic traffic);
  Posted new_operation(std::byte* data, std::int64_t bytes);
  void note_part();
  /** Wakes the process: at once if that was the last one it waits for. */
  void end(Operation& operation);
  Operation& operation(Posted posted) { return operations_[posted - 1]; }
  Queue& queue_of(int source, Traffic traffic) {
    return queues_[static_cast<std::uint64_t>(source) * kTraffics +
                   static_cast<std::uint64_t>(traffic)];
  }
  void load(Parcel& parcel) const;
  static void leave_host(Parcel& parcel);
  void come(const std::shared_ptr<Parcel>& parcel);
  static void arrive(Cluster& cluster, const std::shared_ptr<Parcel>& parcel);
  /** Whether that was the last of a message. */
  bool unload(const Parcel& parcel, Posted posted);
  /** What is still to leave is read now: its memory may go. */
  void load_all();

  Process& process_;
  int context_;
  std::chrono::milliseconds timeout_;
  std::vector<int> members_;
  std::deque<Operation> operations_;
  std::vector<Posted> free_;
  std::uint64_t wait_ = 0;       // the last progress(),
  std::int64_t waited_for_ = 0;  // and what it found under way
  Parcels leaving_;
  std::unordered_map<std::uint64_t, Queue> queues_;
  std::map<std::pair<int, int>, Connection> connections_;  // by rank and column
  std::array<Parcels, kTraffics> taken_;  // of the kinds of which messages are taken
  bool abandoned_ = false;
  bool parts_moved_ = false;  // of messages that have not ended, since the last progress()
  std::int64_t bytes_sent_ = 0;
  ScratchPool scratch_;
  Watch watch_;
};

}  // namespace tutti::simulation
