// Where top-K looks for a sample of a vector.
#pragma once

#include <cstdint>

namespace tutti::cuda {

inline constexpr std::int64_t kSample = 16384;

/**
 * Which of `count` elements is number `i` of the sample: one of each of kSample stretches of equal
 * length, at a place that looks random; element i where there are no more than kSample.
 */
constexpr std::int64_t sample_place(std::int64_t i, std::int64_t count) {
  if (count <= kSample) return i;
  const std::int64_t stretch = count / kSample;
  const std::uint32_t random = static_cast<std::uint32_t>(i) * 2654435761U;
  return i * count / kSample + (std::int64_t{random} * stretch >> 32U);
}

}  // namespace tutti::cuda
