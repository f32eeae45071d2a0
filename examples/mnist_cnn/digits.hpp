// Handwritten digits made up on the spot, for machines without the MNIST files.
#pragma once

#include <cstdint>

#include "data.hpp"

namespace mnist {

/**
 * `count` images of strokes in the shapes of the ten digits, bent, turned, sheared, of different
 * size and thickness, with noise. Which, depends on `seed` and `set` alone: sets with different
 * numbers have no image in common.
 */
Images generate_digits(std::int64_t count, std::uint64_t seed, std::uint64_t set);

}  // namespace mnist
