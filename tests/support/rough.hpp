// Test data whose sum tells in which order it was added.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "support/world.hpp"
#include "tutti/dtype.hpp"

namespace tutti::test {

/** What `rank` contributes: magnitudes from 2^-30 to 2^30 of both signs, so that every order of
 * additions has a sum of its own. */
template <class T>
std::vector<T> rough(int rank, std::int64_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    const std::uint64_t bits = random();
    const int exponent = static_cast<int>(bits >> 40U) % 61 - 30;
    const T mantissa = static_cast<T>(bits % 4096) / 4096 + 1;
    value = static_cast<T>(std::ldexp((bits & 0x8000U) != 0 ? -mantissa : mantissa, exponent));
  }
  return values;
}

/** The sum in the documented order: ranks inside a host, hosts by their lowest rank. */
template <class T>
std::vector<T> sum_in_order(std::int64_t count, T factor) {
  const std::vector<int>& hosts = world().hosts;
  std::vector<std::vector<T>> partial;  // one a host, in the order of the lowest rank
  std::vector<int> seen;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    std::vector<T> mine = rough<T>(static_cast<int>(rank), count);
    for (T& value : mine) value *= factor;
    const auto at = std::find(seen.begin(), seen.end(), hosts[rank]);
    if (at == seen.end()) {
      seen.push_back(hosts[rank]);
      partial.push_back(std::move(mine));
      continue;
    }
    auto& sum = partial[static_cast<std::size_t>(at - seen.begin())];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += mine[i];
  }
  std::vector<T> total = partial.front();
  for (std::size_t host = 1; host < partial.size(); ++host) {
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += partial[host][i];
  }
  return total;
}

/** Whether a view holds the bytes at `expected`. */
inline ::testing::AssertionResult same_bits(const ConstView& actual, const void* expected) {
  const auto* mine = static_cast<const std::byte*>(actual.data);
  const auto* wanted = static_cast<const std::byte*>(expected);
  const auto bytes = static_cast<std::size_t>(actual.bytes());
  const auto [at, unused] = std::mismatch(mine, mine + bytes, wanted);
  if (at == mine + bytes) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << (at - mine) / size_of(actual.dtype)
                                       << " of " << actual.count << " has other bits";
}

}  // namespace tutti::test
