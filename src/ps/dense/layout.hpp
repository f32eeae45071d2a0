// Which server has which blocks of the dense parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/ps/dense.hpp"

namespace tutti::ps {

/** Blocks of shared parameters begin on pages of so many bytes, and all but the last of each end
 * there. */
inline constexpr std::int64_t kPageBytes = 4096;
inline constexpr std::int64_t kPageElements = kPageBytes / std::int64_t{sizeof(float)};

/** Throws InvalidArgument for a shape that makes no sense. */
std::int64_t element_count(const DenseParameter& parameter);

/** The blocks of each server, in the order in which they lie and travel. A server may have none. */
using DenseLayout = std::vector<std::vector<Block>>;

/** Throws InvalidArgument as slice() does, and for a dispatcher without a server for each block. */
DenseLayout lay_out(std::span<const DenseParameter> parameters, int servers,
                    const Slicing& slicing);

/** Where a block begins that follows `elements` others of its server: shared ones on a page. */
std::int64_t begin_of(const Block& block, std::int64_t elements);
/** Of blocks that lie so, what is between them included. */
std::int64_t element_count(std::span<const Block> blocks);

/** Ranks whose dispatchers chose alike have the same. */
std::uint64_t hash_of(const DenseLayout& layout);

}  // namespace tutti::ps
