// Test data whose sum tells in which order it was added.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tutti/dtype.hpp"

namespace tutti::test {

/** What `rank` contributes: magnitudes from 2^-30 to 2^30 of both signs, so that every order of
 * additions has a sum of its own. Of fewer it is the beginning. For float and double. */
template <class T>
std::vector<T> rough(int rank, std::int64_t count);

/** The sum in the documented order: ranks inside a host, hosts by their lowest rank. */
template <class T>
std::vector<T> sum_in_order(std::int64_t count, T factor);

/** Whether a view holds the bytes at `expected`. */
inline ::testing::AssertionResult same_bits(const ConstView& actual, const void* expected) {
  const auto* mine = static_cast<const std::byte*>(actual.data);
  const auto* wanted = static_cast<const std::byte*>(expected);
  const auto bytes = static_cast<std::size_t>(actual.bytes());
  if (bytes == 0 || std::memcmp(mine, wanted, bytes) == 0) return ::testing::AssertionSuccess();
  const auto* const at = std::mismatch(mine, mine + bytes, wanted).first;
  return ::testing::AssertionFailure() << "element " << (at - mine) / size_of(actual.dtype)
                                       << " of " << actual.count << " has other bits";
}

}  // namespace tutti::test
