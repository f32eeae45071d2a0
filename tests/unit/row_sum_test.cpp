// Tests of sums of rows that are given by their indices.
#include "opt/row_sum.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti {
namespace {

std::vector<std::int64_t> indices_of(const RowSum& sum) {
  return {sum.indices().begin(), sum.indices().end()};
}
std::vector<float> values_of(const RowSum& sum) {
  return {sum.values().begin(), sum.values().end()};
}

TEST(RowSum, HasEachRowOnceInAscendingOrder) {
  const std::vector<std::int64_t> indices{7, 2, 7, std::int64_t{1} << 40};
  const std::vector<float> rows{1, 10, 2, 20, 3, 30, 4, 40};
  RowSum sum;
  sum.assign(indices.data(), rows.data(), 4, 2);
  EXPECT_EQ(indices_of(sum), (std::vector<std::int64_t>{2, 7, std::int64_t{1} << 40}));
  EXPECT_EQ(values_of(sum), (std::vector<float>{2, 20, 4, 40, 4, 40}));
  EXPECT_EQ(*sum.row(2), 4.0F);
  sum.divide(3.0F);
  EXPECT_EQ(values_of(sum)[0], 2.0F / 3.0F);
  sum.clear();
  EXPECT_EQ(sum.count(), 0);
  EXPECT_TRUE(sum.values().empty());
}

TEST(RowSum, AddsInTheOrderGiven) {
  const std::vector<std::int64_t> indices{1, 0, 1, 1};
  const std::vector<float> rows{1e8F, -0.0F, 1.0F, -1e8F};  // in any other order row 1 is not 0
  RowSum sum;
  sum.assign(indices.data(), rows.data(), 4, 1);
  EXPECT_EQ(values_of(sum), (std::vector<float>{0.0F, 0.0F}));
  EXPECT_FALSE(std::signbit(sum.values()[0]));  // as of what is added to a whole gradient's zero
}

TEST(RowSum, WritesAWholeGradient) {
  const std::vector<std::int64_t> indices{2, 0, 2};
  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  std::vector<float> whole(8, 9.0F);
  write_whole(Gradient(std::span(indices), std::span(rows), 2), std::span(whole));
  EXPECT_EQ(whole, (std::vector<float>{3, 4, 0, 0, 6, 8, 0, 0}));
}

}  // namespace
}  // namespace tutti
