// Whom a rank that knows of a failure tells, among many.
#include "comm/failures/news.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/failures/heartbeats.hpp"

namespace tutti {
namespace {

constexpr int kHosts = 1024;
constexpr int kRanks = 4;  // of each

const Layout& many() {
  static const Layout layout = [] {
    std::vector<int> hosts(std::size_t{kHosts} * kRanks);
    for (int rank = 0; rank < kHosts * kRanks; ++rank) {
      hosts[static_cast<std::size_t>(rank)] = rank / kRanks;
    }
    return Layout(hosts);
  }();
  return layout;
}

/** A rank of host 5, and what it knows. */
struct Knowledge {
  std::vector<int> lost{2000};
  std::vector<int> told_hosts{};
  std::vector<int> askers{};
  std::vector<int> leavers{};
};

std::vector<int> told_by(int place, NewsFrom from, const Knowledge& known) {
  const auto has_left = [&](int rank) {
    return std::find(known.leavers.begin(), known.leavers.end(), rank) != known.leavers.end();
  };
  std::vector<int> ranks = receivers_of_news(
      many(), {5 * kRanks + place, from, known.lost, known.told_hosts, known.askers, has_left});
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(std::adjacent_find(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/** The lowest ranks of the hosts to which host 5 has connections. */
std::vector<int> next_leaders() {
  std::vector<int> ranks;
  for (const int host : connected_hosts(5, kHosts)) ranks.push_back(host * kRanks);
  return ranks;
}

std::vector<int> with(std::vector<int> ranks, const std::vector<int>& others) {
  ranks.insert(ranks.end(), others.begin(), others.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Knowledge of_leader() { return {.told_hosts = connected_hosts(5, kHosts)}; }

TEST(News, AFinderTellsItsHostAndThoseNextToIt) {
  EXPECT_EQ(told_by(0, NewsFrom::itself, of_leader()), (std::vector<int>{21, 22, 23}));
  EXPECT_EQ(told_by(2, NewsFrom::itself, {}), with(next_leaders(), {20, 21, 23}));
}

TEST(News, TwoOfAHostThatAllKnowOfItTellTheHostsNextToIt) {
  EXPECT_TRUE(told_by(0, NewsFrom::own_host, of_leader()).empty());
  EXPECT_EQ(told_by(1, NewsFrom::own_host, {}), next_leaders());
  EXPECT_TRUE(told_by(2, NewsFrom::own_host, {}).empty());
  EXPECT_EQ(told_by(2, NewsFrom::own_host, {.lost = {20}}), next_leaders());
  EXPECT_EQ(told_by(2, NewsFrom::own_host, {.leavers = {21}}), next_leaders());
}

TEST(News, OfAnotherHostAreToldToTheOwnOne) {
  EXPECT_EQ(told_by(0, NewsFrom::another_host, of_leader()), (std::vector<int>{21, 22, 23}));
  EXPECT_EQ(told_by(1, NewsFrom::another_host, {}), (std::vector<int>{20, 22, 23}));
  EXPECT_EQ(told_by(1, NewsFrom::another_host, {.leavers = {20}}),
            with(next_leaders(), {20, 22, 23}));
}

TEST(News, GoToWhoIsLeftOfAHost) {
  const std::vector<int> ranks =
      told_by(2, NewsFrom::itself, {.lost = {24}, .leavers = {16, 17, 28, 29, 30, 31}});
  const auto is_told = [&](int rank) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  EXPECT_TRUE(is_told(18) && is_told(25));
  EXPECT_FALSE(is_told(16) || is_told(17) || is_told(24));
  EXPECT_TRUE(
      std::none_of(ranks.begin(), ranks.end(), [](int rank) { return rank >= 28 && rank < 32; }));
}

TEST(News, WhoWaitsForARankIsToldByIt) {
  Knowledge known = of_leader();
  // A leader of a connected host, one of the own host, who is lost, who has left, and others.
  known.askers = {16, 22, 2000, 2001, 2002, 3000};
  known.leavers = {2001};
  EXPECT_EQ(told_by(0, NewsFrom::own_host, known), (std::vector<int>{2002, 3000}));
  known.told_hosts.clear();
  EXPECT_EQ(told_by(3, NewsFrom::own_host, known), (std::vector<int>{16, 2002, 3000}));
}

TEST(News, ARankTellsFewHoweverManyWaitForIt) {
  Knowledge known;
  known.askers.resize(std::size_t{kHosts} * kRanks);
  std::iota(known.askers.begin(), known.askers.end(), 0);
  EXPECT_LE(told_by(2, NewsFrom::itself, known).size(), 19 + 3 + 32);
}

}  // namespace
}  // namespace tutti
