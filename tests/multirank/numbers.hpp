// Messages of whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/dtype.hpp"

namespace tutti::test {

using Numbers = std::vector<std::int64_t>;

/** `count` numbers from `first` on. */
inline Numbers numbers(std::int64_t count, std::int64_t first) {
  Numbers values(static_cast<std::size_t>(count));
  for (std::int64_t& value : values) value = first++;
  return values;
}

inline ConstView in(const Numbers& values) { return std::span(values); }
inline View out(Numbers& values) { return std::span(values); }

}  // namespace tutti::test
