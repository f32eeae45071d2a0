// A server: takes requests, has the mode do what they ask for, and looks after who lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/link/links.hpp"
#include "ps/link/meeting.hpp"
#include "ps/modes/server_turn.hpp"
#include "ps/table/table.hpp"
#include "tutti/ps/mode.hpp"
#include "tutti/ps/server.hpp"

namespace tutti::ps {

/** What a server is made of. */
struct ServerParts {
  int index = 0;
  int servers = 1;
  std::vector<Name> workers;
  std::unique_ptr<Links> links;
  /** Where a worker of this process finds it; null: there is none. */
  std::shared_ptr<ServerPlace> place;
  std::vector<Table> tables;
  std::unique_ptr<DenseStore> dense;
  Mode mode;
  std::int64_t round = 0;  ///< of the checkpoint that it began with
  std::chrono::milliseconds timeout{};
  std::string checkpoint;         ///< a folder; empty: none
  std::chrono::seconds every{0};  ///< 0: not during the training
  bool save_at_end = false;
  std::uint64_t job = 0;  ///< alike on all servers, and no other job's
};

std::unique_ptr<Server> make_server(ServerParts parts);

}  // namespace tutti::ps
