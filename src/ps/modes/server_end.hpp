// A server as a worker has it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/link/link.hpp"
#include "ps/link/meeting.hpp"
#include "ps/table/table.hpp"
#include "tutti/ps/dense.hpp"

namespace tutti::ps {

struct ServerEnd {
  Name name;
  std::unique_ptr<Link> link;
  /** The server's part of each table, if it is on this host; otherwise none. */
  std::vector<TableReader> tables;
  /** The server's blocks, if it is on this host and has any. */
  std::optional<DenseReader> dense;
  /** The blocks that the server has, in the order in which they lie and travel. */
  std::vector<Block> blocks;
};

}  // namespace tutti::ps
