// Finds the magnitude that the k-th largest of many values has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace tutti::cpu {

/** The magnitude of infinities and NaNs alike, and the largest there is. */
inline constexpr std::uint32_t kNotFinite = 0x7F800000;

/** |value| as an integer, which orders alike. */
inline std::uint32_t magnitude_of(float value) {
  return std::min(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU, kNotFinite);
}

/** A magnitude that divides values. */
struct Cut {
  std::uint32_t magnitude = 0;
  std::int64_t above = 0;  ///< values whose magnitude is more
};

/**
 * The magnitude of the value that has `rank` values of larger or equal magnitude in front of it, 0
 * <= rank < values.size(). `low` and `high` say between which magnitudes to look for it first; a
 * wrong guess costs time only.
 */
Cut find_cut(std::span<const float> values, std::int64_t rank, std::uint32_t low,
             std::uint32_t high);

}  // namespace tutti::cpu
