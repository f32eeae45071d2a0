// Ordered compaction: the elements above a cut, in one pass.
#pragma once

#include <cstdint>

#include "device/cuda/kernels.hpp"

namespace tutti::cuda {

/** The magnitude of an element as an integer: in the order of magnitudes, NaN last. */
__device__ inline std::uint32_t magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFU;
}

inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kAll = UINT32_MAX;

/** Selects all elements whose magnitude bits are above `bits`, and the first `ties` of those at
 * `bits`. */
struct Cut {
  std::uint32_t bits;
  std::uint32_t ties;
};

/** Lets a kernel do nothing, decided on the GPU. */
struct Condition {
  const std::uint32_t* flag = nullptr;  ///< null: always
  std::uint32_t wanted = 0;

  __device__ bool holds() const { return flag == nullptr || *flag == wanted; }
};

/** What a compaction reads and writes. */
struct Compaction {
  const float* values = nullptr;
  const float* addend = nullptr;                ///< if not null, values are values[i] + addend[i],
  float* sums = nullptr;                        ///< and these are stored here, unless it is null
  float* zero_at = nullptr;                     ///< if not null, becomes zero at what is selected
  const std::uint32_t* indices = nullptr;       ///< of the values; null: 0, 1, 2, ...
  const std::uint32_t* device_count = nullptr;  ///< if not null, how many values there are,
  std::int64_t count = 0;                       ///< which is at most so many
  const Cut* device_cut = nullptr;              ///< if not null, instead of `cut`
  Cut cut{};
  Condition condition;
  Selected selected;
};

/** Launches it. */
void compact(const Compaction& compaction, const Stream& stream);

}  // namespace tutti::cuda
