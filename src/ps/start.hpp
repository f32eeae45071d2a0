// How a worker and a server begin: all of a job, or none.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "ps/dense/layout.hpp"
#include "ps/link/meeting.hpp"
#include "ps/modes/server_turn.hpp"
#include "ps/placement.hpp"
#include "tutti/ps/fleet.hpp"
#include "tutti/ps/server.hpp"
#include "tutti/ps/worker.hpp"

namespace tutti::ps {

/** What both stand on. */
struct StartOptions {
  const FleetOptions& fleet;
  const Placement::Impl& place;
  DenseLayout layout;
  Terms terms;
  RowFormat format;
  std::chrono::milliseconds timeout;
  /** Of a server and a worker in one process; otherwise null. */
  std::shared_ptr<ServerPlace> server_place;
};

/**
 * A server makes its tables, and tells each worker that comes how to find them, or why there are
 * none. Each worker opens them, and tells each server so, or why it cannot. Servers answer when all
 * workers have told them. So all processes throw when one cannot start.
 */
std::unique_ptr<Server> start_server(const StartOptions& options, Listener listener);

/** Then meets the other workers, for which the servers must serve. */
std::unique_ptr<Worker> start_worker(const StartOptions& options,
                                     const std::vector<ServerAddress>& servers);

}  // namespace tutti::ps
