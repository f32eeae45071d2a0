// Compares, hashes and prints signatures.
#include "communicator/signature.hpp"

#include <array>
#include <bit>
#include <sstream>
#include <string_view>

namespace tutti {
namespace {

constexpr std::array<std::string_view, kOperations> kOperationNames{
    "all_reduce",   "reduce",         "broadcast",  "all_gather",
    "all_gather_v", "reduce_scatter", "all_to_all", "sparse_all_reduce",
    "barrier",      "send",           "recv",       "allocate",
    "split"};
constexpr std::array<std::string_view, kReduceKindCount> kReduceNames{
    "sum", "average", "min", "max", "product", "premul_sum"};

/** The finaliser of MurmurHash3: every bit of the input moves every bit of the output. */
std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t h = seed ^ (value + 0x9E3779B97F4A7C15ULL + (seed << 6U) + (seed >> 2U));
  h = (h ^ (h >> 33U)) * 0xFF51AFD7ED558CCDULL;
  h = (h ^ (h >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return h ^ (h >> 33U);
}

/** Random odd numbers: multiplying by what they are mixed into leaves no bit alone. */
constexpr std::array<std::uint64_t, 5> kSalt{0xA0761D6478BD642FULL, 0xE7037ED1A0B428DBULL,
                                             0x8EBC6AF09C88C6E3ULL, 0x589965CC75374CC3ULL,
                                             0x1D8E4E27C47D124FULL};

/** Both halves of the product, as in wyhash: every call computes a hash, so it must be short. */
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::reduce_scatter || operation == Operation::sparse_all_reduce;
}

}  // namespace

Signature Signature::of(Operation operation, DType dtype, std::int64_t count) {
  return of(operation, dtype, count, Reduce());
}

Signature Signature::of(Operation operation, DType dtype, std::int64_t count,
                        const Reduce& reduce) {
  Signature signature;
  signature.operation = operation;
  signature.dtype = dtype;
  signature.reduce = reduce.kind;
  signature.count = count;
  signature.factor = reduce.factor;
  return signature;
}

std::uint64_t Signature::hash() const {
  const std::uint64_t what =
      static_cast<std::uint64_t>(operation) << 48U | static_cast<std::uint64_t>(dtype) << 40U |
      static_cast<std::uint64_t>(reduce) << 32U | static_cast<std::uint32_t>(root);
  const std::uint64_t h = fold(fold(sequence ^ kSalt[0], what ^ kSalt[1]) ^ kSalt[2],
                               fold(static_cast<std::uint64_t>(count) ^ kSalt[3],
                                    std::bit_cast<std::uint64_t>(factor) ^ kSalt[4]) ^
                                   mix(2, counts));
  return h == 0 ? 1 : h;
}

std::string Signature::describe() const {
  std::ostringstream text;
  text << kOperationNames[static_cast<std::size_t>(operation)] << '(';
  if (operation == Operation::allocate) {
    text << count << " bytes";
  } else if (operation != Operation::barrier && operation != Operation::split) {
    text << name_of(dtype) << ", count " << count;
    if (reduces(operation)) text << ", " << kReduceNames[static_cast<std::size_t>(reduce)];
    if (reduce == ReduceKind::premul_sum) text << " with factor " << factor;
    if (root >= 0) text << ", root " << root;
    if (operation == Operation::all_gather_v) {
      text << " in all, " << own_count << " of this rank, counts #" << std::hex << counts;
    }
  }
  text << ')';
  return text.str();
}

std::uint64_t hash_counts(std::span<const std::int64_t> counts) {
  std::uint64_t h = mix(1, counts.size());
  for (const std::int64_t count : counts) h = mix(h, static_cast<std::uint64_t>(count));
  return h;
}

std::string describe_mismatch(std::span<const RankSignature> requests) {
  std::vector<std::string> lines;  // one a distinct request, in the order of the first rank
  std::vector<std::uint64_t> seen;
  for (const RankSignature& request : requests) {
    const std::uint64_t hash = request.signature.hash();
    std::size_t i = 0;
    while (i < seen.size() && seen[i] != hash) ++i;
    if (i == seen.size()) {
      seen.push_back(hash);
      lines.push_back("rank " + std::to_string(request.rank));
      for (const RankSignature& other : requests) {
        if (other.rank != request.rank && other.signature.hash() == hash) {
          lines.back() += ", " + std::to_string(other.rank);
        }
      }
      lines.back() += ": " + request.signature.describe() + " as collective number " +
                      std::to_string(request.signature.sequence);
    }
  }
  std::string text = "the ranks asked for different collectives";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? " - " : "; ") + lines[i];
  return text;
}

std::string describe_mismatch(const RankSignature& sender, const RankSignature& receiver) {
  return "rank " + std::to_string(sender.rank) + " called " + sender.signature.describe() +
         " to rank " + std::to_string(receiver.rank) + ", which called " +
         receiver.signature.describe();
}

}  // namespace tutti
