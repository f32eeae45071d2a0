// Which processes share a host, as far as processes can tell of themselves.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tutti {

/** What the processes of a host have in common, and those of two hosts do not: a hash of the
 * machine with its shared memory and its processes, and one of TUTTI_HOST_ID, or 0. */
using Place = std::array<std::uint64_t, 2>;

/** Of this process. `machine` is the name of its machine, since copies of one that ran have its
 * boot id as well. */
Place own_place(std::string_view machine);

}  // namespace tutti
