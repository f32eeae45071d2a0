// A worker: checks what it is asked for, and does it as the mode says.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ps/link/meeting.hpp"
#include "ps/modes/server_end.hpp"
#include "ps/modes/server_turn.hpp"
#include "tutti/ps/dense.hpp"
#include "tutti/ps/mode.hpp"
#include "tutti/ps/table.hpp"
#include "tutti/ps/worker.hpp"

namespace tutti::ps {

/** What a worker is made of. */
struct WorkerParts {
  int index = 0;
  std::vector<Name> workers;  ///< all, this one included: for what is said of those that are lost
  std::vector<ServerEnd> servers;
  std::vector<TableSpec> tables;
  std::vector<DenseParameter> dense;
  std::uint64_t seed = 0;  ///< of the job
  Mode mode;
  bool servers_save = false;  ///< from time to time: server 0 says when, as a step ends
  bool loaded = false;        ///< the servers began with a checkpoint: initial values are not sent
  std::shared_ptr<ServerPlace> server_place{};  ///< the server of this process; null: there is none
};

/**
 * Meets the other workers: worker 0 sends the initial values of dense parameters, and all wait for
 * each other. So the servers serve by then. Throws PeerLost.
 */
std::unique_ptr<Worker> make_worker(WorkerParts parts);

}  // namespace tutti::ps
