// How many elements the sparse modes send.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tutti {

/** The least float that is not below `spars`: what reaches the one reaches the other. */
inline float threshold_of(double spars) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (spars > std::numeric_limits<float>::max()) return kInfinity;
  const auto threshold = static_cast<float>(spars);
  return threshold < spars ? std::nextafter(threshold, kInfinity) : threshold;
}

/** ceil(spars * count), for 0 < spars <= 1. */
inline std::int64_t top_k_count(double spars, std::int64_t count) {
  const auto k = static_cast<std::int64_t>(std::ceil(spars * static_cast<double>(count)));
  return std::min(k, count);
}

}  // namespace tutti
