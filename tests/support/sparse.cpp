// Makes sparse vectors and adds them up.
#include "support/sparse.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace tutti::test {
namespace {

bool holds_element(SparsePattern pattern, int rank, std::int64_t i, std::int64_t count,
                   std::mt19937& own, std::mt19937& shared) {
  const auto percent = [](std::mt19937& random) { return random() % 1000U; };
  switch (pattern) {
    case SparsePattern::scattered:
      return percent(own) < 20;
    case SparsePattern::common: {
      const bool everybody = percent(shared) < 16;
      return percent(own) < 4 || everybody;
    }
    case SparsePattern::uneven:
      return rank == 0 || (rank > 1 && percent(own) < 10);
    case SparsePattern::clustered: {
      const std::int64_t begin = count / 10 * (rank + 1);
      return i >= begin && i < begin + count / 7;
    }
    case SparsePattern::full:
      return true;
    case SparsePattern::empty:
      break;
  }
  return false;
}

float some_value(std::mt19937& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  if (bits % 100 < 4) return bits % 2 == 0 ? 0.0F : -0.0F;
  const int exponent = static_cast<int>(bits >> 16U) % 61 - 30;
  const float mantissa = static_cast<float>(bits % 4096) / 4096.0F + 1.0F;
  return std::ldexp((bits & 0x8000U) != 0 ? -mantissa : mantissa, exponent);
}

}  // namespace

std::string name_of(SparsePattern pattern) {
  constexpr std::array<const char*, 6> kNames{"scattered", "common", "uneven",
                                              "clustered", "full",   "empty"};
  return kNames[static_cast<std::size_t>(pattern)];
}

Sparse sparse_data(SparsePattern pattern, int rank, std::int64_t count) {
  std::mt19937 own(static_cast<unsigned>(rank) + 1);
  std::mt19937 shared(99);
  Sparse result;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!holds_element(pattern, rank, i, count, own, shared)) continue;
    result.indices.push_back(static_cast<std::uint32_t>(i));
    result.values.push_back(some_value(own));
  }
  return result;
}

std::vector<float> sparse_sum(SparsePattern pattern, std::int64_t count, Reduce reduce,
                              const std::vector<int>& hosts) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<float> total(size, 0.0F);
  std::vector<int> seen;
  for (const int host : hosts) {
    if (std::find(seen.begin(), seen.end(), host) != seen.end()) continue;
    seen.push_back(host);
    std::vector<float> sum(size, 0.0F);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      if (hosts[rank] != host) continue;
      const Sparse part = sparse_data(pattern, static_cast<int>(rank), count);
      for (std::size_t i = 0; i < part.indices.size(); ++i) sum[part.indices[i]] += part.values[i];
    }
    for (std::size_t i = 0; i < size; ++i) total[i] += sum[i];
  }
  if (reduce.kind == ReduceKind::average) {
    for (float& value : total) value /= static_cast<float>(hosts.size());
  }
  return total;
}

}  // namespace tutti::test
