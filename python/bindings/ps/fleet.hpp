// A process' part of a parameter server as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "communicator.hpp"
#include "lifetime.hpp"
#include "ps/row_memory.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::python {

/** A ps::Placement, and the communicator that it is of. */
struct PyPlacement {
  std::shared_ptr<ps::Placement> placement;
  std::shared_ptr<Communicator> world = {};  // null where the processes have none
};

/** Worker and server in one: which of them this process has is asked before. Closed, it refuses
 * every call. */
class PyFleet final : public Closable {
 public:
  PyFleet(const PyPlacement& placement, const ps::FleetOptions& options);
  ~PyFleet() override;

  /** Calls what may block on the worker, or on the server. */
  template <class Call>
  auto on_worker(Call&& call) const {
    const std::shared_ptr<ps::Fleet> fleet = shared();
    return blocking([&] { return call(fleet->worker()); }, [] {});
  }
  template <class Call>
  auto on_server(Call&& call) const {
    const std::shared_ptr<ps::Fleet> fleet = shared();
    return blocking([&] { return call(fleet->server()); }, [] {});
  }
  /** Of the server of this process, also if that is a thread. */
  std::optional<ps::ServerStats> server_stats() const {
    const std::shared_ptr<ps::Fleet> fleet = shared();
    return blocking([&] { return fleet->server_stats(); }, [] {});
  }

  /** Where the rows of lookups lie that have no memory of their own. */
  RowMemory& row_memory() const { return *row_memory_; }

  /** The worker's; not called again once has_stopped(). */
  void stop();
  /** Whether stop() has ended: known also where a signal's handler raises right after it. */
  bool has_stopped() const { return has_stopped_; }
  /** Blocks while a server's thread of this process has workers. Interrupted, it ends that. */
  void leave(const std::optional<std::string>& reason);
  /** leave(), where nobody can be told of an interrupt. */
  void close(const std::optional<std::string>& reason) override;

 private:
  /** Has the servers told why this worker leaves, if it does so, also where another thread's call
   * keeps it until that ends. */
  void tell(const std::optional<std::string>& reason);
  /** Throws CommunicationError if it is closed. */
  std::shared_ptr<ps::Fleet> shared() const;
  /** Closes it; returns what is to leave the others, if anything. */
  std::shared_ptr<ps::Fleet> let_go();

  PyPlacement placement_;
  std::shared_ptr<ps::Fleet> fleet_;  // null once closed
  std::atomic<bool> has_stopped_ = false;
  std::shared_ptr<RowMemory> row_memory_ = std::make_shared<RowMemory>();
};

}  // namespace tutti::python
