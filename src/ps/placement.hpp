// What a process knows of its place before it has met the others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/meeting/named_endpoint.hpp"
#include "ps/link/meeting.hpp"
#include "tutti/communicator.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {

class Placement::Impl {
 public:
  int worker = -1;  ///< -1: none
  int server = -1;
  bool serves_in_a_thread = false;
  std::vector<Name> workers;
  std::vector<Name> servers;
  /** Over it servers tell where they listen; null: they listen at their endpoints. */
  Communicator* world = nullptr;
  std::optional<Communicator> own_world;  ///< `world`, if it was made for this
  std::vector<std::string> endpoints;     ///< of the servers, as far as they were given
  /** Looked up: of a worker those of all servers, of a server its own alone. */
  std::vector<mpi::NamedEndpoint> resolved;

  /** Workers 0, 1, ... and servers 0, 1, ... are the ranks of a job, in this order. */
  void number_ranks(int worker_count, int server_count);
};

}  // namespace tutti::ps
