// Sums of rows of a table that are given by their indices.
#include "opt/row_sum.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

void add(const float* row, std::int64_t width, float* sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += row[i];
}

}  // namespace

void RowSum::assign(const std::int64_t* indices, const float* rows, std::int64_t count,
                    std::int64_t width) {
  width_ = width;
  places_.clear();
  for (std::int64_t i = 0; i < count; ++i) places_.emplace_back(indices[i], i);
  std::sort(places_.begin(), places_.end());  // by places where the indices are equal
  indices_.clear();
  for (const auto& [index, place] : places_) {
    if (indices_.empty() || indices_.back() != index) indices_.push_back(index);
  }
  values_.assign(indices_.size() * static_cast<std::size_t>(width), 0.0F);
  std::size_t sum = 0;
  for (const auto& [index, place] : places_) {
    if (indices_[sum] != index) ++sum;
    add(rows + place * width, width, values_.data() + sum * static_cast<std::size_t>(width));
  }
}

void RowSum::clear() {
  indices_.clear();
  values_.clear();
}

void RowSum::divide(float divisor) {
  for (float& value : values_) value /= divisor;
}

void write_whole(const Gradient& rows, View gradient) {
  const std::int64_t width = rows.row_elements;
  const auto* const indices = static_cast<const std::int64_t*>(rows.rows.data);
  const auto* const values = static_cast<const float*>(rows.values.data);
  auto* const whole = static_cast<float*>(gradient.data);
  std::memset(whole, 0, static_cast<std::size_t>(gradient.bytes()));
  for (std::int64_t i = 0; i < rows.rows.count; ++i) {
    add(values + i * width, width, whole + indices[i] * width);
  }
}

}  // namespace tutti
