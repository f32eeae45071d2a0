// How the ways that go piece by piece keep the ranks in step: the templates of Local.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/shm/local.hpp"

namespace tutti::shm {

/**
 * Piece k is staged in slot k mod 3 once everybody has worked off the piece that was there before;
 * each rank fills the next slot before it reads the present one, so that nobody waits long. What
 * the slots hold when a call begins is done with: all ranks have come to the move.
 */
template <class Stage, class Take>
void Local::relay(std::int64_t count, std::int64_t most, const Part& part, const Stage& stage,
                  const Take& take) {
  const std::uint32_t base = pieces_;
  const auto total = static_cast<std::uint32_t>((count + most - 1) / most);
  RankSlot& own = group_.control().slot(rank());
  const auto with = [&](std::uint32_t piece, const auto& act) {
    const std::int64_t begin = piece * most;
    act(begin, std::min(most, count - begin), piece % Staging::kSlots);
  };
  const auto put = [&](std::uint32_t piece) {
    if (piece >= total) return;
    if (part.gives) {
      if (piece >= Staging::kSlots) {
        group_.wait_for_all(&RankSlot::taken, base + piece + 1 - Staging::kSlots);
      }
      with(piece, stage);
    }
    own.staged.publish(base + piece + 1);
  };
  put(0);
  for (std::uint32_t piece = 0; piece < total; ++piece) {
    put(piece + 1);
    if (part.takes) {
      if (part.source == Task::kAll) {
        group_.wait_for_all(&RankSlot::staged, base + piece + 1);
      } else {
        group_.wait_for(part.source, &RankSlot::staged, base + piece + 1);
      }
      with(piece, take);
    }
    own.taken.publish(base + piece + 1);
  }
  pieces_ = base + total;
}

/** Elements [begin, begin + count) of `block`, or what of them there is. */
template <class AnyView>
AnyView piece_of(const AnyView& block, std::int64_t begin, std::int64_t count) {
  const std::int64_t start = std::min(begin, block.count);
  return block.part(start, std::min(count, block.count - start));
}

template <class BlockTo, class Take>
void Local::relay_blocks(std::int64_t longest, std::int64_t width, const BlockTo& block_to,
                         const Take& take) {
  const std::int64_t room = std::max<std::int64_t>(Staging::kPiece / size() / width, 1);
  relay(
      longest, room, {},
      [&](auto begin, auto count, auto slot) {
        auto& staging = staging_of(rank()).in[slot];
        for (int peer = 0; peer < size(); ++peer) {
          if (peer == rank()) continue;
          const ConstView source = piece_of(ConstView(block_to(peer)), begin, count);
          cpu::copy(staging.data() + peer * room * width, source.data, source.bytes(), false);
        }
      },
      [&](auto begin, auto count, auto slot) {
        const ConstView own = piece_of(ConstView(block_to(rank())), begin, count);
        find_pieces(slot, rank() * room * width, own.data);
        take(begin, count);
      });
}

}  // namespace tutti::shm
