// How the hosts' sums of sparse vectors should travel.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tutti/sparse.hpp"

namespace tutti {

/** What a sparse_all_reduce between hosts has to do. All hosts know the same. */
struct SparseTask {
  std::int64_t count = 0;  ///< elements of the result
  std::int64_t hosts = 0;
  std::int64_t ranks = 1;         ///< of the host that has most
  std::int64_t most_entries = 0;  ///< in the sum of the host that has most
  std::int64_t most_bytes = 0;    ///< of the host whose packets are longest
  std::int64_t all_entries = 0;   ///< of all hosts together
  double union_entries = 0.0;     ///< of their sum, about
  double seconds_per_byte = 0.0;  ///< that a host sends or receives
};

/** The choice and what it rests on. */
struct SparsePlan {
  SparseAlgorithm algorithm = SparseAlgorithm::gather;
  /** Predictions, by SparseAlgorithm. */
  std::array<double, 4> seconds{};

  /** "split (predicted: gather 1.2 ms, ...)". */
  std::string describe() const;
};

/**
 * The algorithm that is predicted to be the fastest. Bytes a host sends: H - 1 packets to gather;
 * to split, its packet but for its own range, then the sum of that range H - 1 times; as many
 * elements if dense. What arrives is then spread to the other ranks of the host, if there are any,
 * who add packets up all at the same time. A host's packet is the sum of its ranks', so how many
 * they are and how much they overlap is already in its length. (After Renggli et al., "SparCML:
 * high-performance sparse communication for machine learning", 2019, and Li and Hoefler,
 * "Near-optimal sparse allreduce for distributed deep learning", 2022.)
 */
SparsePlan plan_sparse(const SparseTask& task);

/** What TUTTI_SPARSE asks for, if it is set. Throws InvalidArgument if it is no algorithm. */
std::optional<SparseAlgorithm> forced_sparse_algorithm();

}  // namespace tutti
