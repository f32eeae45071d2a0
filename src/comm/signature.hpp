// What a rank asks for in a collective: compared between ranks before any output is written.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/call.hpp"
#include "tutti/error.hpp"

namespace tutti {

/** The finaliser of MurmurHash3: every bit of the input moves every bit of the output. */
inline std::uint64_t mix_hash(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t h = seed ^ (value + 0x9E3779B97F4A7C15ULL + (seed << 6U) + (seed >> 2U));
  h = (h ^ (h >> 33U)) * 0xFF51AFD7ED558CCDULL;
  h = (h ^ (h >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return h ^ (h >> 33U);
}

/** Random odd numbers: multiplying by what they are mixed into leaves no bit alone. */
inline constexpr std::array<std::uint64_t, 5> kHashSalt{
    0xA0761D6478BD642FULL, 0xE7037ED1A0B428DBULL, 0x8EBC6AF09C88C6E3ULL, 0x589965CC75374CC3ULL,
    0x1D8E4E27C47D124FULL};

/** Both halves of the product, as in wyhash: every call computes a hash, so it must be short. */
inline std::uint64_t fold_hash(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

/** A hash of counts for Signature::counts. */
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

/** Plain bytes, so that it can lie in shared memory and travel in a message. */
struct Signature {
  std::uint64_t sequence = 0;  ///< number of the collective on this communicator
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceKind reduce = ReduceKind::sum;
  std::int32_t root = -1;
  std::int64_t count = 0;      ///< as the call's documentation counts
  double factor = 1.0;         ///< of premul_sum
  std::uint64_t counts = 0;    ///< hash of the counts that all ranks share
  std::int64_t own_count = 0;  ///< of these: what this rank brings or gets; may differ
  std::uint64_t before = 0;    ///< hash of the calls before that went one way; see Notes

  /** What `call` asks for. The sequence is the transport's. */
  static Signature of(const Call& call) {
    Signature signature;
    signature.operation = call.operation;
    signature.dtype = call.dtype;
    signature.reduce = call.reduction.kind;
    signature.root = call.root;
    signature.count = call.count;
    signature.factor = call.reduction.factor;
    if (!call.counts.empty() && call.operation != Operation::all_to_all_v) {
      signature.counts = hash_counts(call.counts);
      const bool brings =
          call.operation == Operation::all_gather_v || call.operation == Operation::gather_v;
      signature.own_count = brings ? call.in.count : call.out.count;
    }
    return signature;
  }

  /** Equal for signatures that match, and almost surely different otherwise. Never 0. */
  std::uint64_t hash() const {
    const std::uint64_t what =
        static_cast<std::uint64_t>(operation) << 48U | static_cast<std::uint64_t>(dtype) << 40U |
        static_cast<std::uint64_t>(reduce) << 32U | static_cast<std::uint32_t>(root);
    const std::uint64_t h =
        fold_hash(fold_hash(sequence ^ kHashSalt[0], what ^ kHashSalt[1]) ^ kHashSalt[2],
                  fold_hash(static_cast<std::uint64_t>(count) ^ kHashSalt[3],
                            std::bit_cast<std::uint64_t>(factor) ^ kHashSalt[4]) ^
                      mix_hash(before, counts));
    return h == 0 ? 1 : h;
  }
  /** "all_reduce(f32, count 10, sum)". */
  std::string describe() const;
};
static_assert(std::is_trivially_copyable_v<Signature>);

/** What one rank asked for. */
struct RankSignature {
  int rank = 0;
  Signature signature;
};

/** The message of MismatchError for a collective: each distinct request with the ranks that made
 * it; with its number where these differ. That counts what a user's calls do not: the flight
 * recorder's is theirs. */
std::string describe_mismatch(std::span<const RankSignature> requests);

/** A mismatch that this rank has found: the others have to be told. */
class OneSidedMismatch final : public MismatchError {
 public:
  using MismatchError::MismatchError;
};

}  // namespace tutti
