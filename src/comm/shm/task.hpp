// What the ranks of a host do together, as a value: who gives which elements to whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "comm/shm/choices.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti::shm {

/**
 * A task of the ranks of one host, which all of them have with matching arguments. Elements come
 * from the `in` of those who give, and go to the `out` of those who take: those of all ranks
 * combined in the order of the ranks, or each rank's in its place. Root -1 means all ranks.
 */
struct Task {
  static constexpr int kAll = -1;

  TaskKind kind = TaskKind::meet;
  DType dtype = DType::u8;
  ConstView in;  ///< of those who give
  View out;      ///< of those who take
  cpu::Combine combine{};
  int root = kAll;                         ///< of reduce, spread and gather
  std::span<const std::int64_t> counts{};  ///< of blocks: elements by rank, if they differ
  std::int64_t count = 0;                  ///< that a rank takes of another, at most
  std::int64_t bytes = 0;                  ///< of a rank's contribution, at most

  /** Nothing moves. */
  static Task meet() { return {}; }
  /** Combined, to all. */
  static Task all_reduce(const ConstView& in, const View& out, const cpu::Combine& combine) {
    return {.kind = TaskKind::all_reduce,
            .dtype = in.dtype,
            .in = in,
            .out = out,
            .combine = combine,
            .count = in.count,
            .bytes = in.bytes()};
  }
  /** Combined, to `root`; elsewhere `out` is not looked at. */
  static Task reduce(const ConstView& in, const View& out, const cpu::Combine& combine, int root);
  /** Combined, to each rank the block of its number. */
  static Task reduce_scatter(const ConstView& in, const View& out, const cpu::Combine& combine);
  /** The same with blocks of counts[r] elements for rank r, one after the other. */
  static Task reduce_scatter(const ConstView& in, const View& out, const cpu::Combine& combine,
                             std::span<const std::int64_t> counts);
  /** From `root` to all; elsewhere `in` is not looked at. */
  static Task spread(const ConstView& in, const View& out, int root);
  /** counts[r] elements of rank r, in the order of the ranks, to `root`. */
  static Task gather(const ConstView& in, const View& out, std::span<const std::int64_t> counts,
                     int root);
  /** All in the order of the ranks, to all. */
  static Task all_gather(const ConstView& in, const View& out);
  /** counts[r] elements of rank r, in the order of the ranks, to all. */
  static Task all_gather(const ConstView& in, const View& out,
                         std::span<const std::int64_t> counts);
  /** Of each rank the block of one's own number, in the order of the ranks. */
  static Task all_to_all(const ConstView& in, const View& out, int ranks);

  std::int64_t width() const { return size_of(dtype); }
  bool combines() const {
    return kind == TaskKind::all_reduce || kind == TaskKind::reduce ||
           kind == TaskKind::reduce_scatter;
  }
  /** Whether each rank takes another part of what the others give. */
  bool by_blocks() const {
    return kind == TaskKind::reduce_scatter || kind == TaskKind::all_to_all;
  }
  bool gives(int rank) const { return kind != TaskKind::spread || rank == root; }
  bool takes(int rank) const {
    if (kind == TaskKind::spread) return rank != root;
    return root == kAll || rank == root;
  }
  /** How many elements the block of a rank has: what is taken of it, or by it. */
  std::int64_t count_of(int rank) const {
    return counts.empty() ? count : counts[static_cast<std::size_t>(rank)];
  }
  /** Where the block of a rank begins, behind those of the ranks before it. */
  std::int64_t begin_of(int rank) const {
    if (counts.empty()) return rank * count;
    return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  }
};

}  // namespace tutti::shm
