// Keeps the smallest hashes and counts with them.
#include "comm/sparse/sketch.hpp"

#include <vector>

#include "base/recycled.hpp"

namespace tutti {

void SparseSketch::shrink() {
  std::nth_element(hashes_.begin(), hashes_.begin() + kKept - 1, hashes_.end());
  count_ = kKept;
  bound_ = hashes_[kKept - 1];
}

SparseSketch::Summary SparseSketch::summary() const {
  std::array<std::uint32_t, 2 * kKept> sorted = hashes_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count_));
  Summary summary;
  summary.count = static_cast<std::uint32_t>(std::min(count_, kKept));
  std::copy_n(sorted.begin(), summary.count, summary.hashes.begin());
  return summary;
}

double estimate_union(std::span<const SparseSketch::Summary> sets) {
  RecycledVector<std::uint32_t> hashes;
  hashes.reserve(sets.size() * SparseSketch::kKept);  // the same however many there are
  for (const SparseSketch::Summary& set : sets) {
    hashes.insert(hashes.end(), set.hashes.begin(), set.hashes.begin() + set.count);
  }
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  if (hashes.size() < SparseSketch::kKept) return static_cast<double>(hashes.size());
  const double fraction = (static_cast<double>(hashes[SparseSketch::kKept - 1]) + 1.0) * 0x1p-32;
  return static_cast<double>(SparseSketch::kKept - 1) / fraction;
}

}  // namespace tutti
