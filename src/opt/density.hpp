// How many elements the sparse modes send.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "communicator/text.hpp"
#include "tutti/error.hpp"

namespace tutti {

/** Throws InvalidArgument unless `spars` is a fraction that top-K can send, or a threshold. */
inline void check_spars(const char* method, double spars, bool top_k) {
  const bool good = top_k ? spars > 0.0 && spars <= 1.0 : spars >= 0.0 && std::isfinite(spars);
  if (good) return;
  throw InvalidArgument(
      std::string(method) + ": spars is " + number_text(spars) + ", but must be " +
      (top_k ? "above 0 and at most 1 for top-K" : "finite and not negative for a threshold"));
}

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
