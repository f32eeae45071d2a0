// The ways of all_reduce, in which the ranks share the work and pass on their results.
#include <algorithm>
#include <array>

#include "base/memory.hpp"
#include "comm/shm/local.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti::shm {

void Local::reduce_lines(const Task& task) {
  // Lines are zeros behind the contributions: up to half of one, whole vectors are faster.
  constexpr std::int64_t kHalf = 32;
  alignas(kHalf) std::array<std::byte, Arrival::kData> result;
  const std::int64_t bytes = task.bytes <= kHalf ? kHalf : task.bytes;
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = arrival_of(peer).data.data();
  }
  void* const target = result.data();
  cpu::reduce(std::span(&target, 1), inputs_, bytes / task.width(), task.dtype, task.combine);
  copy_bytes(task.out.data, target, task.bytes);
}

void Local::reduce_in_place(const Task& task) {
  if (!met_.direct_out) return reach(task);
  const std::int64_t width = task.width();
  const Share share = share_of(task.count, width, size(), rank());
  const auto output_of = [&](int peer) {
    std::byte* start = peer == rank() ? static_cast<std::byte*>(task.out.data)
                                      : symmetric_.resolve(peer, request_of(peer).out);
    return start + share.begin * width;
  };
  // This rank's own output first: it is the one that stays in its cache.
  outputs_.clear();
  outputs_.push_back(output_of(rank()));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) outputs_.push_back(output_of(peer));
  }
  find_inputs(task, share.begin * width);
  cpu::reduce(outputs_, inputs_, share.count, task.dtype, task.combine,
              met_.way().streamed ? cpu::Stores{1} : cpu::Stores{});
  finish_reading();
}

/**
 * Three steps for each piece, one piece apart from each other: every rank puts what the others
 * reduce into its staging memory; reduces its share of what all have put there; and fetches the
 * others' results. A slot is filled again when its last piece has been fetched or reduced by all,
 * which the steps in between have shown.
 */
void Local::reduce_in_pieces(const Task& task) {
  const ConstView in = task.in;
  const View out = task.out;
  const std::int64_t width = task.width();
  const std::int64_t most = met_.way().piece / width;
  const bool streamed = met_.way().streamed;
  const auto total = static_cast<std::uint32_t>((in.count + most - 1) / most);
  const std::uint32_t base = pieces_;
  RankSlot& slot = group_.control().slot(rank());
  Staging& own = staging_of(rank());
  const auto count_of = [&](std::uint32_t piece) {
    return std::min(most, in.count - std::int64_t{piece} * most);
  };
  const auto share_in = [&](std::uint32_t piece, int index) {
    return share_of(count_of(piece), width, size(), index);
  };

  const auto stage = [&](std::uint32_t piece) {
    const Share mine = share_in(piece, rank());
    const ConstView source = in.part(std::int64_t{piece} * most, count_of(piece));
    std::byte* target = own.in[piece % Staging::kSlots].data();
    const std::int64_t end = mine.begin + mine.count;
    cpu::copy(target, source.data, mine.begin * width, streamed);
    cpu::copy(target + end * width, source.part(end, 0).data, (source.count - end) * width,
              streamed);
    slot.staged.publish(base + piece + 1);
  };
  const auto reduce_share = [&](std::uint32_t piece) {
    const Share mine = share_in(piece, rank());
    const std::int64_t begin = std::int64_t{piece} * most + mine.begin;
    const std::size_t place = piece % Staging::kSlots;
    const std::array<void*, 2> outs{out.part(begin, 0).data, own.out[place].data()};
    group_.wait_for_all(&RankSlot::staged, base + piece + 1);
    find_pieces(place, mine.begin * width, in.part(begin, 0).data);
    cpu::reduce(outs, inputs_, mine.count, task.dtype, task.combine,
                streamed ? cpu::Stores{1} : cpu::Stores{});
    slot.taken.publish(base + piece + 1);
  };
  const auto fetch = [&](std::uint32_t piece) {
    group_.wait_for_all(&RankSlot::taken, base + piece + 1);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Share theirs = share_in(piece, peer);
      cpu::copy(out.part(std::int64_t{piece} * most + theirs.begin, 0).data,
                staging_of(peer).out[piece % Staging::kSlots].data(), theirs.count * width, false);
    }
  };
  stage(0);
  for (std::uint32_t piece = 0; piece < total; ++piece) {
    if (piece + 1 < total) stage(piece + 1);
    reduce_share(piece);
    if (piece > 0) fetch(piece - 1);
  }
  fetch(total - 1);
  pieces_ = base + total;
}

void Local::reduce_copies(const Task& task) {
  const std::int64_t width = task.width();
  const Share mine = share_of(task.count, width, size(), rank());
  pull_and_combine(task, mine.begin, task.out.part(mine.begin, mine.count), mine.count);
  group_.synchronise();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // not all from the same rank at once
    const Share theirs = share_of(task.count, width, size(), peer);
    const auto moved = static_cast<std::uint64_t>(theirs.begin * width);
    pull_from(peer, task.out.part(theirs.begin, 0).data, request_of(peer).out_address + moved,
              theirs.count * width);
  }
  finish_reading();
}

}  // namespace tutti::shm
