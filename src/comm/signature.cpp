// Compares, hashes and prints signatures.
#include "comm/signature.hpp"

#include <algorithm>
#include <sstream>

namespace tutti {

std::string Signature::describe() const {
  std::ostringstream text;
  text << name_of(operation) << '(';
  if (operation == Operation::allocate || operation == Operation::exchange) {
    text << count << " bytes";
  } else if (operation == Operation::all_to_all_v) {
    text << name_of(dtype);
  } else if (has_elements(operation)) {
    text << name_of(dtype) << ", count " << count;
    if (reduces(operation)) text << ", " << name_of(reduce);
    if (reduce == ReduceKind::premul_sum) text << " with factor " << factor;
    if (root >= 0) text << ", root " << root;
    if (counts != 0) {
      text << " in all, " << own_count << " of this rank, counts #" << std::hex << counts;
    }
  }
  text << ')';
  return text.str();
}

std::uint64_t hash_counts(std::span<const std::int64_t> counts) {
  std::uint64_t h = mix_hash(1, counts.size());
  for (const std::int64_t count : counts) h = mix_hash(h, static_cast<std::uint64_t>(count));
  return h;
}

std::string describe_mismatch(std::span<const RankSignature> requests) {
  const bool same_number = std::ranges::all_of(requests, [&](const RankSignature& request) {
    return request.signature.sequence == requests.front().signature.sequence;
  });
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
      lines.back() += ": " + request.signature.describe();
      if (same_number) continue;
      lines.back() += " as collective number " + std::to_string(request.signature.sequence);
    }
  }
  std::string text = "the ranks asked for different collectives";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? " - " : "; ") + lines[i];
  return text;
}

}  // namespace tutti
