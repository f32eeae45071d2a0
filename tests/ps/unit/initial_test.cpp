// The values that rows have before their first push.
#include "ps/table/initial.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/siphash.hpp"

namespace tutti::ps {
namespace {

std::vector<float> row_of(const Initial& initial, std::uint64_t seed, std::int64_t id,
                          std::int64_t dim) {
  std::vector<float> row(static_cast<std::size_t>(dim), -99.0F);
  fill_initial(initial, seed, id, dim, row.data());
  return row;
}

/** Rows of ids 0, 1, ..., one after the other. */
std::vector<float> rows_of(const Initial& initial, std::int64_t ids, std::int64_t dim) {
  std::vector<float> rows(static_cast<std::size_t>(ids * dim));
  for (std::int64_t id = 0; id < ids; ++id) {
    fill_initial(initial, 7, id, dim, &rows[static_cast<std::size_t>(id * dim)]);
  }
  return rows;
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/** Correlation of values with those `distance` places on. */
double correlation(const std::vector<float>& values, std::size_t distance) {
  const double middle = mean(values);
  double product = 0;
  double square = 0;
  for (std::size_t i = 0; i + distance < values.size(); ++i) {
    product += (values[i] - middle) * (values[i + distance] - middle);
    square += (values[i] - middle) * (values[i] - middle);
  }
  return product / square;
}

TEST(Initial, AColumnDoesNotDependOnHowManyThereAre) {
  for (const Initial& initial : {Initial(Uniform{}), Initial(Normal{})}) {
    const std::vector<float> longest = row_of(initial, 3, -5, 101);
    for (const std::int64_t dim : {1, 2, 7, 16, 17, 64}) {
      const std::vector<float> row = row_of(initial, 3, -5, dim);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), longest.begin())) << dim;
    }
  }
}

TEST(Initial, SeedsIdsAndColumnsDiffer) {
  for (const Initial& initial : {Initial(Uniform{}), Initial(Normal{})}) {
    std::vector<float> seen;
    for (const std::uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
      for (const std::int64_t id : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1},
                                    std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
        const std::vector<float> row = row_of(initial, seed, id, 5);
        seen.insert(seen.end(), row.begin(), row.end());
      }
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }
}

TEST(Initial, TableSeedsDependOnJobAndName) {
  EXPECT_NE(table_seed(1, "item"), table_seed(2, "item"));
  EXPECT_NE(table_seed(1, "item"), table_seed(1, "user"));
  EXPECT_EQ(table_seed(1, "item"), table_seed(1, "item"));
}

// Every machine and every release must come to these: checkpoints hold no rows that nobody pushed.
TEST(Initial, BitsAreThese) {
  const auto hash_of = [](const Initial& initial) {
    const std::vector<float> rows = rows_of(initial, 1000, 19);
    return siphash(SipKey{}, std::as_bytes(std::span(rows)));
  };
  EXPECT_EQ(hash_of(Uniform{}), 2112963998410943019U);
  EXPECT_EQ(hash_of(Normal{}), 15473012795930778706U);
  EXPECT_EQ(table_seed(7, "item"), 7697465474059478206U);
}

TEST(Initial, ConstantIsThatValue) {
  for (const float value : row_of(Constant{0.25F}, 1, 2, 37)) EXPECT_EQ(value, 0.25F);
}

TEST(Initial, UniformStaysInItsBoundsAndFillsThem) {
  const std::vector<float> values = rows_of(Uniform{.low = -1.0F, .high = 3.0F}, 100'000, 7);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*least, -1.0F);
  EXPECT_LT(*most, 3.0F);
  EXPECT_LT(*least, -0.9999F);
  EXPECT_GT(*most, 2.9999F);
  EXPECT_NEAR(mean(values), 1.0, 0.01);
  std::array<std::int64_t, 64> bins{};
  for (const float value : values) ++bins.at(static_cast<std::size_t>((value + 1.0F) * 16.0F));
  double chi = 0;
  const double expected = static_cast<double>(values.size()) / bins.size();
  for (const std::int64_t count : bins) {
    chi += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected);
  }
  EXPECT_LT(chi / expected, 63 + 5 * std::sqrt(2 * 63.0));
}

TEST(Initial, UniformNeverReachesItsUpperBound) {
  // Values between these can but be rounded to one of them.
  const float high = std::nextafter(1.0F, 2.0F);
  for (const float value : rows_of(Uniform{.low = 1.0F, .high = high}, 1000, 3)) {
    EXPECT_EQ(value, 1.0F);
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const float value : rows_of(Uniform{.low = -kMost, .high = kMost}, 1000, 3)) {
    EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_EQ(row_of(Uniform{.low = 2.0F, .high = 2.0F}, 1, 1, 1).front(), 2.0F);
}

TEST(Initial, NormalHasTheMomentsAndTheQuantilesOfOne) {
  std::vector<float> values = rows_of(Normal{.mean = 2.0F, .deviation = 0.5F}, 100'000, 7);
  for (float& value : values) value = (value - 2.0F) * 2.0F;
  const auto n = static_cast<double>(values.size());
  std::array<double, 4> moments{};
  for (const double value : values) {
    double power = 1;
    for (double& moment : moments) {
      power *= value;
      moment += power / n;
    }
  }
  EXPECT_NEAR(moments[0], 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(moments[1], 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moments[2], 0.0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moments[3], 3.0, 5 * std::sqrt(96 / n));
  std::sort(values.begin(), values.end());
  // Kolmogorov and Smirnov, where a true sample is beyond 2 once in 1500 times.
  double farthest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = 0.5 * std::erfc(-values[i] / std::sqrt(2.0));
    farthest = std::max(farthest, std::abs((static_cast<double>(i) + 0.5) / n - expected));
  }
  EXPECT_LT(farthest * std::sqrt(n), 2.0);
  EXPECT_GT(values.back(), 4.2F);
  EXPECT_LT(values.back(), 5.5F);
}

TEST(Initial, NeighboursAreIndependent) {
  constexpr std::size_t kDim = 16;
  for (const Initial& initial : {Initial(Uniform{}), Initial(Normal{})}) {
    const std::vector<float> values = rows_of(initial, 20'000, kDim);
    // Columns beside each other, and columns of ids beside each other.
    for (const std::size_t distance : {std::size_t{1}, std::size_t{2}, kDim - 1, kDim, 2 * kDim}) {
      EXPECT_LT(std::abs(correlation(values, distance)),
                5 / std::sqrt(static_cast<double>(values.size())))
          << distance;
    }
  }
}

}  // namespace
}  // namespace tutti::ps
