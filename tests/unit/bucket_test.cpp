// Tests of how gradients are laid out and cut into buckets.
#include "opt/bucket.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tutti {
namespace {

std::vector<ParameterRange> of_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<ParameterRange> parameters;
  for (const std::int64_t size : sizes) {
    ParameterRange range;
    range.count = size;
    parameters.push_back(range);
  }
  return parameters;
}

/** The numbers of gradients in the buckets, in order. */
std::vector<std::size_t> cut(const std::vector<std::int64_t>& sizes, std::int64_t bucket_elements) {
  const auto parameters = of_sizes(sizes);
  std::vector<std::size_t> numbers;
  for (const Bucket& bucket :
       cut_buckets(parameters, place_gradients(parameters), bucket_elements)) {
    numbers.push_back(bucket.last - bucket.first);
  }
  return numbers;
}

TEST(PlaceGradients, StartsEachOnItsOwnCacheLine) {
  const std::vector<std::int64_t> starts = place_gradients(of_sizes({1, 16, 17, 500, 16}));
  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 16, 32, 64, 576, 592}));
}

TEST(PlaceGradients, OfNothingTakesNoMemory) {
  EXPECT_EQ(place_gradients({}), std::vector<std::int64_t>{0});
  EXPECT_TRUE(cut_buckets({}, place_gradients({}), 100).empty());
}

TEST(PlaceGradients, CountsIn64Bits) {
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(place_gradients(of_sizes({huge, huge})).back(), 2 * huge);
  EXPECT_EQ(cut({huge, huge, huge}, 2 * huge), (std::vector<std::size_t>{2, 1}));
}

TEST(CutBuckets, FillsABucketToItsLastElement) {
  EXPECT_EQ(cut({3, 4, 3, 4, 1}, 7), (std::vector<std::size_t>{2, 2, 1}));
}

TEST(CutBuckets, EndsBeforeTheGradientThatIsTooMuch) {
  EXPECT_EQ(cut({3, 5, 2, 1}, 7), (std::vector<std::size_t>{1, 2, 1}));
}

TEST(CutBuckets, GivesALargerGradientABucketOfItsOwn) {
  EXPECT_EQ(cut({2, 100, 2, 2}, 7), (std::vector<std::size_t>{1, 1, 2}));
  EXPECT_EQ(cut({100, 100}, 7), (std::vector<std::size_t>{1, 1}));
}

TEST(CutBuckets, OfOneElementHoldsOneGradient) {
  EXPECT_EQ(cut({1, 1, 9}, 1), (std::vector<std::size_t>{1, 1, 1}));
}

TEST(CutBuckets, LargerThanTheModelIsOneBucket) {
  EXPECT_EQ(cut({1, 1, 9}, std::int64_t{1} << 40), std::vector<std::size_t>{3});
}

TEST(CutBuckets, LeavesOutWhatTravelsApart) {
  const auto parameters = of_sizes({3, 4, 3, 4, 1});
  const std::vector<std::int64_t> starts = place_gradients(parameters);
  const std::vector<Bucket> buckets =
      cut_buckets(parameters, starts, 100, {true, false, false, true, false});
  ASSERT_EQ(buckets.size(), 2U);  // without a gap, however many elements there is room for
  EXPECT_EQ(buckets[0].first, 1U);
  EXPECT_EQ(buckets[0].last, 3U);
  EXPECT_EQ(buckets[0].elements, 7);
  EXPECT_EQ(buckets[1].first, 4U);
  EXPECT_EQ(buckets[1].begin, starts[4]);
  EXPECT_EQ(buckets[1].end, starts[4] + 1);
  EXPECT_TRUE(cut_buckets(parameters, starts, 100, std::vector<bool>(5, true)).empty());
}

TEST(CutBuckets, CoversEachGradientOnceAndNoGapAtItsEnds) {
  const auto parameters = of_sizes({5, 40, 1, 1, 70, 16, 3});
  const std::vector<std::int64_t> starts = place_gradients(parameters);
  std::size_t next = 0;
  for (const Bucket& bucket : cut_buckets(parameters, starts, 42)) {
    EXPECT_EQ(bucket.first, next);
    ASSERT_LT(bucket.first, bucket.last);
    EXPECT_EQ(bucket.begin, starts[bucket.first]);
    EXPECT_EQ(bucket.end, starts[bucket.last - 1] + parameters[bucket.last - 1].count);
    next = bucket.last;
  }
  EXPECT_EQ(next, parameters.size());
}

}  // namespace
}  // namespace tutti
