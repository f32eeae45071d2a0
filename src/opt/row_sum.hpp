// Sums of rows of a table that are given by their indices.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tutti/gradient.hpp"

namespace tutti {

/** Rows of a table, each at most once, in ascending order: what a gradient has, or several. */
class RowSum {
 public:
  /**
   * Becomes the sum of `count` rows of `width` elements: row indices[i] at rows + i * width. Those
   * of one index are added in the order in which they are given, to zero, as in a whole gradient.
   */
  void assign(const std::int64_t* indices, const float* rows, std::int64_t count,
              std::int64_t width);
  /** Has no rows. */
  void clear();
  /** Divides all elements. */
  void divide(float divisor);

  std::int64_t count() const { return static_cast<std::int64_t>(indices_.size()); }
  std::span<const std::int64_t> indices() const { return indices_; }
  /** Of all rows, one behind the other. */
  std::span<const float> values() const { return values_; }
  std::span<float> values() { return values_; }
  const float* row(std::int64_t i) const { return values_.data() + i * width_; }

 private:
  std::int64_t width_ = 1;
  std::vector<std::int64_t> indices_;
  std::vector<float> values_;
  std::vector<std::pair<std::int64_t, std::int64_t>> places_;  // of assign(): index, place
};

/** gradient = the whole gradient of which `rows` are given. */
void write_whole(const Gradient& rows, View gradient);

}  // namespace tutti
