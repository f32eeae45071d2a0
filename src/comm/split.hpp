// How the ranks of a communicator agree on its parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/scratch.hpp"
#include "tutti/transport.hpp"
#include "tutti/unique_id.hpp"

namespace tutti {

/** This rank's part after a split, or the group that it makes. */
struct PartPlan {
  std::vector<int> members;       ///< ranks of the old communicator, in the order of the new
  std::vector<UniqueId> tickets;  ///< what each member brought
  int rank = -1;                  ///< of this process among them
  std::int32_t context = 0;       ///< the greatest that a rank brought
};

/**
 * Collective over `transport`: all ranks tell color, key, a fresh ticket, and the number of a
 * context that they have not used. For a negative color the plan has no members. What travels lies
 * in `scratch`.
 */
PartPlan plan_split(Transport& transport, ScratchPool& scratch, int color, int key,
                    std::int32_t context = 0);

/**
 * Collective over `ranks`: each tells each other which ranks it takes for the members, a fresh
 * ticket and a context. Throws MismatchError where another one comes with other ranks; both do, but
 * nobody tells the rest of them.
 */
PartPlan plan_group(Transport& transport, ScratchPool& scratch, std::span<const int> ranks,
                    std::int32_t context = 0);
/** Collective over `ranks`: blocks until all have come. */
void meet_group(Transport& transport, std::span<const int> ranks);

}  // namespace tutti
