// How much the index sets of several hosts overlap, from a few numbers of each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/**
 * The smallest hashes of a set of indices: of several sets, they tell the size of the union. (Bar-
 * Yossef et al., "Counting distinct elements in a data stream", 2002.) Plain bytes once finished.
 */
class SparseSketch {
 public:
  static constexpr std::size_t kKept = 128;  // the estimate is good to 9 %

  void clear() {
    count_ = 0;
    bound_ = ~std::uint32_t{0};
  }
  void add(std::uint32_t index) {
    const std::uint32_t hash = hash_of(index);
    if (hash > bound_) return;
    hashes_[count_++] = hash;
    if (count_ == hashes_.size()) shrink();
  }

  /** What a host tells of its set. */
  struct Summary {
    std::uint32_t count = 0;
    std::array<std::uint32_t, kKept> hashes{};
  };
  Summary summary() const;

 private:
  /** A permutation of the 32-bit numbers, so that no two indices share a hash. */
  static std::uint32_t hash_of(std::uint32_t index) {
    std::uint32_t h = index * 0x9E3779B1U;
    h ^= h >> 15U;
    return h * 0x85EBCA77U;
  }
  void shrink();

  std::array<std::uint32_t, 2 * kKept> hashes_{};
  std::size_t count_ = 0;
  std::uint32_t bound_ = ~std::uint32_t{0};
};

/** About how many indices there are in the union of the sets; exact if they are few. */
double estimate_union(std::span<const SparseSketch::Summary> sets);

}  // namespace tutti
