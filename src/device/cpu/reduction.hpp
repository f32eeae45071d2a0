// What a kernel does for a Reduce.
#pragma once

#include <cstdint>

#include "device/cpu/kernels.hpp"
#include "tutti/reduce.hpp"

namespace tutti {

/** The combination that `reduce` means over `ranks` contributions. */
inline cpu::Combine combine_of(const Reduce& reduce, int ranks) {
  switch (reduce.kind) {
    case ReduceKind::average:
      return {ReduceKind::sum, 1.0, ranks};
    case ReduceKind::premul_sum:
      return {ReduceKind::sum, reduce.factor, 1};
    default:
      return {reduce.kind, 1.0, 1};
  }
}

/** Elements [begin, begin + count) of a whole. */
struct Share {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/** Share `index` of `total` elements among `parts`, cut at multiples of 64 bytes. */
inline Share share_of(std::int64_t total, std::int64_t element_bytes, int parts, int index) {
  const std::int64_t grain = 64 / element_bytes;
  const std::int64_t even = (total + parts - 1) / parts;
  const std::int64_t length = (even + grain - 1) / grain * grain;
  const std::int64_t begin = length * index < total ? length * index : total;
  return {begin, length < total - begin ? length : total - begin};
}

}  // namespace tutti
