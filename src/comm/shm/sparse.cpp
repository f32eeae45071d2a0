// The elements of sparse vectors, lent through the staging memory.
#include <algorithm>
#include <cstring>

#include "base/memory.hpp"
#include "comm/shm/local.hpp"

namespace tutti::shm {
namespace {

/** What a rank lends to the others in a round: some of its next elements. */
struct alignas(64) Piece {
  static constexpr std::size_t kRoom =
      (Staging::kPiece - 64) / (sizeof(std::uint32_t) + sizeof(float)) / 16 * 16;

  std::int64_t count;
  std::int64_t end;  ///< all elements of this rank with a lower index have been in its pieces
  alignas(64) std::array<std::uint32_t, kRoom> indices;
  std::array<float, kRoom> values;
};
static_assert(sizeof(Piece) <= Staging::kPiece);

}  // namespace

/**
 * In each round every rank lends its next elements, as many as fit a piece. The round is about the
 * indices up to the lowest end of any piece; who lent more lends the rest again. So every round
 * ends with some rank's piece used up, whatever the distributions.
 */
void Local::merge_sparse(const SparseView& in, std::int64_t count, const TakeSparse& take) {
  sparse_parts_.resize(static_cast<std::size_t>(size()));
  if (size() == 1) {
    sparse_parts_[0] = in;
    return take(0, count, sparse_parts_);
  }
  std::int64_t at = 0;  // elements of `in` that are done with
  std::size_t parity = 0;
  for (std::int64_t begin = 0; begin < count; parity ^= 1U) {
    const auto piece_of = [&](int peer) {
      return reinterpret_cast<Piece*>(staging_of(peer).in[parity].data());
    };
    Piece& own = *piece_of(rank());
    own.count = std::min<std::int64_t>(in.count - at, Piece::kRoom);
    own.end = at + own.count < in.count ? std::int64_t{in.indices[at + own.count]} : count;
    copy_bytes(own.indices.data(), in.indices + at,
               own.count * static_cast<std::int64_t>(sizeof(std::uint32_t)));
    copy_bytes(own.values.data(), in.values + at,
               own.count * static_cast<std::int64_t>(sizeof(float)));
    group_.synchronise();

    std::int64_t end = count;
    for (int peer = 0; peer < size(); ++peer) end = std::min(end, piece_of(peer)->end);
    for (int peer = 0; peer < size(); ++peer) {
      const Piece& piece = *piece_of(peer);
      const auto* first = piece.indices.data();
      const auto* last = std::lower_bound(first, first + piece.count, end);
      sparse_parts_[static_cast<std::size_t>(peer)] = {first, piece.values.data(), last - first};
    }
    at += sparse_parts_[static_cast<std::size_t>(rank())].count;
    take(begin, end, sparse_parts_);
    begin = end;
  }
  group_.check_own_loss();
}

std::int64_t Local::bytes_lent(const SparseView& in) const {
  constexpr std::int64_t kElement = sizeof(std::uint32_t) + sizeof(float);
  return size() == 1 ? 0 : in.count * kElement;
}

}  // namespace tutti::shm
