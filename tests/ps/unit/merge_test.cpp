// Sums of duplicates: in the order in which rows came, however they were handed over.
#include "ps/table/merge.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace tutti::ps {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int64_t>;

TEST(Merger, AddsInTheOrderOfAppearance) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> any(-1.0F, 1.0F);
  for (const std::int64_t dim : {1, 3, 16, 17}) {
    const auto width = static_cast<std::size_t>(dim);
    Merger merger(dim);
    for (int round = 0; round < 3; ++round) {
      Ids ids(5'000);
      for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 1'500) - 700;
      Floats rows(ids.size() * width);
      for (float& value : rows) value = any(random);
      Ids expected_ids;
      std::map<std::int64_t, Floats> sums;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const Floats row(&rows[i * width], &rows[i * width] + width);
        const auto [place, is_new] = sums.try_emplace(ids[i], row);
        if (is_new) {
          expected_ids.push_back(ids[i]);
        } else {
          for (std::size_t j = 0; j < width; ++j) place->second[j] += row[j];
        }
      }
      for (const std::size_t piece : {std::size_t{5'000}, std::size_t{1'234}, std::size_t{1}}) {
        merger.clear();
        for (std::size_t start = 0; start < ids.size(); start += piece) {
          const auto part = std::span(ids).subspan(start, std::min(piece, ids.size() - start));
          merger.add(part, &rows[start * width]);
        }
        ASSERT_EQ(Ids(merger.ids().begin(), merger.ids().end()), expected_ids);
        for (std::size_t i = 0; i < expected_ids.size(); ++i) {
          const float* row = merger.rows() + i * width;
          ASSERT_EQ(Floats(row, row + width), sums.at(expected_ids[i]));
        }
        ASSERT_EQ(merger.shows(), nullptr);
      }
    }
  }
}

TEST(Merger, AddsShowsAndClicksWhereTheyAreGiven) {
  Merger merger(1);
  const Ids first{5, 6};
  const Ids second{6, 7, 6};
  const Floats rows(3, 1.0F);
  const Floats shows{10.0F, 20.0F, 30.0F};
  merger.add(first, rows.data());
  merger.add(second, rows.data(), shows);
  EXPECT_EQ(merger.clicks(), nullptr);
  merger.add(first, rows.data(), {}, std::span(shows).first(2));
  EXPECT_EQ(Floats(merger.shows(), merger.shows() + 3), (Floats{0.0F, 40.0F, 20.0F}));
  EXPECT_EQ(Floats(merger.clicks(), merger.clicks() + 3), (Floats{10.0F, 20.0F, 0.0F}));
  merger.clear();
  EXPECT_TRUE(merger.ids().empty());
  EXPECT_EQ(merger.shows(), nullptr);
}

}  // namespace
}  // namespace tutti::ps
