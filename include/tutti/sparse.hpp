// Sparse vectors: a few elements of many, and what adding them up over the ranks has cost.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

/** The most elements that the vector may have of which a SparseView holds some. */
inline constexpr std::int64_t kMostSparse = (std::int64_t{1} << 32) - 1;

/**
 * `count` elements of a longer f32 vector, in memory that somebody else owns and that is only read:
 * element indices[i] has the value values[i], all others are zero. Indices ascend strictly.
 */
struct SparseView {
  const std::uint32_t* indices = nullptr;
  const float* values = nullptr;
  std::int64_t count = 0;
};

/** How the hosts' sums travel to each other; the results have the same bits. */
enum class SparseAlgorithm : std::uint8_t {
  none,    ///< all ranks share a host
  gather,  ///< every host sends its sum to all others
  split,   ///< every host sums up a range of the indices, then sends that to all others
  dense,   ///< as split, with all elements, zeros too
};

/** "none", "gather", "split" or "dense". */
std::string_view name_of(SparseAlgorithm algorithm);

/** What one sparse_all_reduce did. */
struct SparseStats {
  std::int64_t bytes_sent = 0;     ///< by this rank, to ranks of its host and of others
  std::int64_t bytes_between = 0;  ///< of these, to other hosts: Communicator::bytes_between()
  SparseAlgorithm algorithm = SparseAlgorithm::none;
  std::int64_t entries = 0;  ///< elements of the result that are not zero
  double density = 0.0;      ///< their fraction
};

}  // namespace tutti
