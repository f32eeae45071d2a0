// How gradients are laid out in memory, and which of them travel together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/optimizer.hpp"

namespace tutti {

/** Gradients that travel as one message: a contiguous stretch of the gradients' memory. */
struct Bucket {
  std::size_t first = 0;  ///< holds the gradients of parameters [first, last)
  std::size_t last = 0;
  std::int64_t begin = 0;  ///< in elements [begin, end) of the memory
  std::int64_t end = 0;
  std::int64_t elements = 0;  ///< of gradients, not counting the gaps
};

/** A cache line, and the widest vector of a CPU. */
inline constexpr std::int64_t kGradientAlignment = 64;

/**
 * Where the gradient of each parameter starts, in elements, and behind them where the memory
 * ends: in the given order, each on a multiple of kGradientAlignment bytes, so that kernels and
 * models work on aligned memory. It does not depend on the buckets, which only cut it up.
 */
std::vector<std::int64_t> place_gradients(std::span<const ParameterRange> parameters);

/**
 * Cuts the gradients at `starts` (place_gradients) into buckets of whole gradients. A bucket ends
 * before the gradient that would make it larger than `bucket_elements`, not counting the gaps; a
 * gradient that alone is larger has a bucket of its own. Those where `apart` is true are in none;
 * it may be empty. The result is in the memory of `buckets`, which is enough if that has room for
 * as many as there are parameters.
 */
std::vector<Bucket> cut_buckets(std::span<const ParameterRange> parameters,
                                std::span<const std::int64_t> starts, std::int64_t bucket_elements,
                                const std::vector<bool>& apart = {},
                                std::vector<Bucket> buckets = {});

}  // namespace tutti
