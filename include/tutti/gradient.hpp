// A gradient as a backward pass hands it over: whole, or as the rows of a table that it touches.
#pragma once

#include <concepts>
#include <cstdint>

#include "tutti/dtype.hpp"

namespace tutti {

/**
 * The gradient of a parameter: either all of its elements, or some rows of it, where the parameter
 * is a table of rows of `row_elements` elements, in memory of the CPU, and all other rows of the
 * gradient are zeros, as those of an embedding are.
 */
struct Gradient {
  /** All elements. */
  template <std::convertible_to<ConstView> Elements>
  Gradient(const Elements& elements) : values(elements) {}
  /** values has row rows[0], row rows[1], ...: what is there several times counts as the sum. */
  Gradient(ConstView rows_in, ConstView values_in, std::int64_t row_elements_in)
      : values(values_in), rows(rows_in), row_elements(row_elements_in) {}

  bool is_whole() const { return row_elements == 0; }

  ConstView values;               ///< f32
  ConstView rows{};               ///< i64, in any order; none if the gradient is whole
  std::int64_t row_elements = 0;  ///< 0 if the gradient is whole
};

}  // namespace tutti
