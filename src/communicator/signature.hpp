// What a rank asks for in a collective: compared between ranks before any output is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti {

enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  reduce_scatter,
  all_to_all,
  sparse_all_reduce,
  barrier,
  send,
  recv,
  allocate,
  split,
};
inline constexpr std::size_t kOperations = 13;

/** Plain bytes, so that it can lie in shared memory and travel in a message. */
struct Signature {
  std::uint64_t sequence = 0;  ///< number of the collective on this communicator
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceKind reduce = ReduceKind::sum;
  std::int32_t root = -1;
  std::int64_t count = 0;      ///< as the call's documentation counts
  double factor = 1.0;         ///< of premul_sum
  std::uint64_t counts = 0;    ///< hash of all_gather_v's counts
  std::int64_t own_count = 0;  ///< of all_gather_v: what this rank brings; may differ

  static Signature of(Operation operation, DType dtype, std::int64_t count);
  static Signature of(Operation operation, DType dtype, std::int64_t count, const Reduce& reduce);

  /** Equal for signatures that match, and almost surely different otherwise. Never 0. */
  std::uint64_t hash() const;
  /** "all_reduce(f32, count 10, sum)". */
  std::string describe() const;
};
static_assert(std::is_trivially_copyable_v<Signature>);

/** A hash of counts for Signature::counts. */
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

/** What one rank asked for. */
struct RankSignature {
  int rank = 0;
  Signature signature;
};

/** The message of MismatchError for a collective: each distinct request with the ranks that made
 * it. */
std::string describe_mismatch(std::span<const RankSignature> requests);
/** The same for a send and a recv. */
std::string describe_mismatch(const RankSignature& sender, const RankSignature& receiver);

}  // namespace tutti
