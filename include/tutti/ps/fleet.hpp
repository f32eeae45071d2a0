// Workers and servers meet: which rank is what, and how they find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/communicator.hpp"
#include "tutti/ps/dense.hpp"
#include "tutti/ps/mode.hpp"
#include "tutti/ps/server.hpp"
#include "tutti/ps/table.hpp"
#include "tutti/ps/worker.hpp"

namespace tutti::ps {

/**
 * What this process is among workers and servers, and where it meets the others. A communicator is
 * needed until Fleet has been made, and not afterwards: no server or worker depends on it then.
 */
class Placement {
 public:
  /** The last `servers` ranks are servers, the others workers. Throws InvalidArgument. */
  static Placement last_ranks(Communicator& world, int servers);
  /** The last rank of each host is a server, the others workers. Throws InvalidArgument on all
   * ranks if a host has one rank alone. */
  static Placement one_per_host(Communicator& world);
  /** All ranks are workers, and each has a server, which is a thread of its process. */
  static Placement threads(Communicator& world);
  /**
   * As the environment says: the roles that `tutti run --server_num N --worker_num N` gives, or
   * Paddle's variables of processes that somebody starts one by one: TRAINING_ROLE (TRAINER or
   * PSERVER), PADDLE_TRAINERS_NUM, PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINER_ID of a worker,
   * POD_IP and PADDLE_PORT (or PADDLE_CURRENT_ENDPOINT) of a server. A heter_worker is a worker
   * that comes after the others. Ranks that `tutti run` has started on one machine meet as a
   * Communicator does, all others at the servers' endpoints, without MPI. Throws InvalidArgument
   * naming the variable that is missing or wrong, and what Communicator's constructor throws.
   */
  static Placement environment();
  /** Servers listen at `endpoints` ("host:port,host:port"); this is server `index`, which listens
   * at its own. Throws InvalidArgument, also for a host that cannot be looked up. */
  static Placement server(std::string_view endpoints, int index, int workers);
  /** And this is worker `index`. */
  static Placement worker(std::string_view endpoints, int index, int workers);

  Placement(Placement&&) noexcept;
  Placement& operator=(Placement&&) noexcept;
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  ~Placement();

  /** What this process is; with threads() it is both. */
  bool is_worker() const;
  bool is_server() const;
  int worker_index() const;  ///< -1 of a server that is no worker
  int server_index() const;  ///< -1 of a worker that is no server
  /** How many there are of each. */
  int workers() const;
  int servers() const;
  /** Of all workers and servers; null where they are known by endpoints alone. */
  Communicator* world() const;
  /** "host:port" of each server, as far as they have any. */
  const std::vector<std::string>& server_endpoints() const;

  class Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Placement(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/** How rows that are looked up and gradients travel between hosts: with 16 bits rounded to the
 * nearest, and to at most the greatest finite value (of f16: 65504). What GEO mode adds and dense
 * values travel whole. On a host nothing is rounded. */
enum class WireFormat : std::uint8_t { f32, f16, bf16 };

/** Alike on all workers and servers; what differs is a MismatchError that shows both sides. */
struct FleetOptions {
  std::vector<TableSpec> tables{};
  std::vector<DenseParameter> dense{};
  Slicing slicing{};
  Mode mode = Async{};
  std::uint64_t seed = 0;  ///< of initial values and entry rules
  WireFormat wire = WireFormat::f32;
  /** How long workers and servers wait for each other; unset: TUTTI_TIMEOUT, or else 300 s. */
  std::optional<std::chrono::milliseconds> timeout{};
  /** A checkpoint to begin with. Empty: none. Servers alone look at it and at what follows. */
  std::string load{};
  /** Where servers write checkpoints, on a file system that all of them share: made at the start,
   * and refused if it cannot be written to. With one of the two that follow, or both. */
  std::string checkpoint{};
  std::chrono::seconds every{0};  ///< how often; 0: not during the training
  bool save_at_end = false;       ///< when no worker is left
};

/**
 * This process' part of a parameter server.
 *
 * A worker and a server are a link, and a link fails alone: who is lost is told to those who need
 * it, and the others go on.
 */
class Fleet {
 public:
  /**
   * Meets the others. Blocks until all are there. Errors: PeerLost listing who is missing at the
   * deadline, MismatchError, InvalidArgument for tables or parameters that make no sense,
   * SystemError (on all of them) if a server cannot listen, has no memory, or cannot load or write
   * checkpoints; where
   * they are known by endpoints alone, one that cannot listen is missing for the others.
   */
  Fleet(const Placement& placement, const FleetOptions& options);
  Fleet(Fleet&&) noexcept;
  Fleet& operator=(Fleet&&) noexcept;
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  /** As close(), but what ends the server's thread is logged alone. */
  ~Fleet();

  /**
   * Leaves: a worker that has not stopped is lost for the servers. Waits for a server's thread in
   * this process, which ends when all workers have gone; what ends the wait (an InterruptCheck)
   * ends that server, too, and is thrown. Throws what has ended the server's thread before all
   * workers had gone, or kept it from writing the last checkpoint. Nothing else may be called
   * afterwards, nor at the same time.
   */
  void close();

  bool is_worker() const;
  /** Whether this process has a server that is to run(): not one that is a thread. */
  bool is_server() const;
  /** Throws InvalidArgument if it is none. */
  Worker& worker();
  Server& server();
  /** What this process' server has done, also if that is a thread, or was; nothing if there is
   * none. Any thread may ask. */
  std::optional<ServerStats> server_stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
