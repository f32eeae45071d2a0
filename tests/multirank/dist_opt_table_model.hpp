// Models with a table of rows, for tests of DistOpt.
#pragma once

#include <cstdint>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {

constexpr std::int64_t kWidth = 3;
constexpr std::int64_t kRows = 40;
constexpr std::size_t kTable = 1;  // of the parameters
inline const std::vector<std::size_t> kSizes{50, kRows* kWidth, 7, 20};

/** Parameters of which one is, or may be, a table. */
struct TableModel {
  Values values{kSizes, 1.0F};
  std::vector<Parameter> parameters(bool has_table) {
    std::vector<Parameter> list = values.parameters();
    if (has_table) list[kTable].row_elements = kWidth;
    return list;
  }
};

/** The table alone. */
struct TableAlone {
  Values values{{static_cast<std::size_t>(kRows * kWidth)}};
  std::vector<Parameter> parameters() {
    std::vector<Parameter> list = values.parameters();
    list[0].row_elements = kWidth;
    return list;
  }
  View view() { return values.view(0); }
  const std::vector<float>& elements() const { return values.arrays[0]; }
};

}  // namespace tutti::test
