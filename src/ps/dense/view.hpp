// Maps the blocks of a dense parameter as one stretch of memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/shm/memory/segment.hpp"

namespace tutti::ps {

/**
 * Maps memory once more that is mapped shared, one part after the other; read_only also where this
 * process may write to the parts. It outlives their mappings. Each part begins on a page
 * of kPageBytes, and all but the last end there. Throws SystemError.
 */
std::shared_ptr<const shm::Mapping> map_again(const std::vector<std::span<const float>>& parts,
                                              shm::Access access);

}  // namespace tutti::ps
