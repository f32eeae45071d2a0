// Sparse test data of every rank, and what their sum is in the documented order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/sparse.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

/** A sparse vector with memory of its own. */
struct Sparse {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;

  SparseView view() const {
    return {indices.data(), values.data(), static_cast<std::int64_t>(indices.size())};
  }
};

/** Where the ranks have their elements. */
enum class SparsePattern {
  scattered,  ///< 2 %, anywhere, different on each rank
  common,     ///< 2 %, four of five at the same places on all ranks
  uneven,     ///< rank 0 has all elements, rank 1 none, others 1 %
  clustered,  ///< a dense stretch, which moves with the rank
  full,       ///< all elements
  empty,      ///< none on any rank
};
inline constexpr SparsePattern kPatterns[] = {SparsePattern::scattered, SparsePattern::common,
                                              SparsePattern::uneven,    SparsePattern::clustered,
                                              SparsePattern::full,      SparsePattern::empty};
std::string name_of(SparsePattern pattern);

/** What `rank` has of a vector of `count` elements: magnitudes from 2^-30 to 2^30 of both signs,
 * so that every order of additions has a sum of its own, and some zeros of both signs. */
Sparse sparse_data(SparsePattern pattern, int rank, std::int64_t count);

/** The sum in the documented order: ranks inside a host, hosts by their lowest rank. */
std::vector<float> sparse_sum(SparsePattern pattern, std::int64_t count, Reduce reduce,
                              const std::vector<int>& hosts);

}  // namespace tutti::test
