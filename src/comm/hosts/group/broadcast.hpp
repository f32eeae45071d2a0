// Broadcasts among the members of a group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/hosts/group/ahead.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/wire.hpp"

namespace tutti {

/** From member `root` to all, in place; there from `from`, which may be another place than `data`.
 * Nothing is written to `data` before `agree` has returned. */
void broadcast_from(const HostGroup& group, int root, std::byte* data, std::int64_t bytes,
                    const std::byte* from, const Agree& agree);
inline void broadcast_from(const HostGroup& group, int root, std::byte* data, std::int64_t bytes) {
  broadcast_from(group, root, data, bytes, data, {});
}

/** Whether a long broadcast goes from each member to the next one, who sends on what comes before
 * all of it has: once the bytes a link, in the fewest messages. */
bool broadcasts_in_chain(const HostGroup& group);

/** A long broadcast that goes neither from member to member nor in groups, in messages of
 * `traffic`: the root gives every other member a share, and they pass it on to each other: once the
 * bytes a link. `agree` comes first if there is one. Source: scatter and all-gather, van de Geijn;
 * see that of DirectReduction. */
void broadcast_shares(const HostGroup& group, int root, std::byte* data, std::int64_t bytes,
                      const std::byte* from, const Agree& agree, Wire::Traffic traffic);

}  // namespace tutti
