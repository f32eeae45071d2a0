// How the ranks of a communicator agree on its parts.
#pragma once

#include <vector>

#include "tutti/transport.hpp"
#include "tutti/unique_id.hpp"

namespace tutti {

/** This rank's part after a split. */
struct SplitPlan {
  std::vector<int> members;       ///< ranks of the old communicator, in the order of the new
  std::vector<UniqueId> tickets;  ///< what each member brought
  int rank = -1;                  ///< of this process among them
};

/**
 * Collective over `transport`: all ranks tell color, key and a fresh ticket. For a negative color
 * the plan has no members.
 */
SplitPlan plan_split(Transport& transport, int color, int key, const UniqueId& ticket);

}  // namespace tutti
