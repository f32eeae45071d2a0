// How the ways that go piece by piece keep the ranks in step: the templates of ShmTransport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/shm/transport.hpp"

namespace tutti::shm {

/**
 * Piece k is staged in slot k mod 3 once everybody has worked off the piece that was there before;
 * each rank fills the next slot before it reads the present one, so that nobody waits long. What
 * the slots hold when a call begins is done with: all ranks have come to the move.
 */
template <class Stage, class Take>
void ShmTransport::relay(std::int64_t count, std::int64_t most, const Part& part,
                         const Stage& stage, const Take& take) {
  const std::uint32_t base = pieces_;
  const auto total = static_cast<std::uint32_t>((count + most - 1) / most);
  RankSlot& own = host_.control().slot(rank());
  const auto with = [&](std::uint32_t piece, const auto& act) {
    const std::int64_t begin = piece * most;
    act(begin, std::min(most, count - begin), piece % Staging::kSlots);
  };
  const auto put = [&](std::uint32_t piece) {
    if (piece >= total) return;
    if (part.gives) {
      if (piece >= Staging::kSlots) {
        host_.wait_for_all(&RankSlot::taken, base + piece + 1 - Staging::kSlots);
      }
      with(piece, stage);
    }
    own.staged.publish(base + piece + 1);
  };
  put(0);
  for (std::uint32_t piece = 0; piece < total; ++piece) {
    put(piece + 1);
    if (part.takes) {
      if (part.source == Part::kAll) {
        host_.wait_for_all(&RankSlot::staged, base + piece + 1);
      } else {
        host_.wait_for(part.source, &RankSlot::staged, base + piece + 1);
      }
      with(piece, take);
    }
    own.taken.publish(base + piece + 1);
  }
  pieces_ = base + total;
}

template <class Take>
void ShmTransport::pull_pieces(const Move& move, ConstView in, std::int64_t offset,
                               std::int64_t count, const Take& take) {
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t most = move.choice.way.piece / width;
  pulled_.resize(static_cast<std::size_t>(size() * move.choice.way.piece));
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t length = std::min(most, count - begin);
    for (int peer = 0; peer < size(); ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      if (peer == rank()) {
        inputs_[at] = in.part(offset + begin, length).data;
        continue;
      }
      std::byte* target = pulled_.data() + peer * move.choice.way.piece;
      const auto moved = static_cast<std::uint64_t>((offset + begin) * width);
      pull(peer, target, request_of(peer).in_address + moved, length * width);
      inputs_[at] = target;
    }
    take(std::span<const void* const>(inputs_), begin, length);
  }
}

/** Elements [begin, begin + count) of `block`, or what of them there is. */
template <class AnyView>
AnyView piece_of(const AnyView& block, std::int64_t begin, std::int64_t count) {
  const std::int64_t start = std::min(begin, block.count);
  return block.part(start, std::min(count, block.count - start));
}

template <class BlockTo, class Take>
void ShmTransport::relay_blocks(std::int64_t longest, std::int64_t width, std::int64_t piece,
                                bool streamed, const BlockTo& block_to, const Take& take) {
  const std::int64_t room = std::max<std::int64_t>(piece / size() / width, 1);
  relay(
      longest, room, {},
      [&](auto begin, auto count, auto slot) {
        auto& staging = host_.control().staging(rank()).in[slot];
        for (int peer = 0; peer < size(); ++peer) {
          if (peer == rank()) continue;
          const ConstView source = piece_of(ConstView(block_to(peer)), begin, count);
          cpu::copy(staging.data() + peer * room * width, source.data, source.bytes(), streamed);
        }
      },
      [&](auto begin, auto count, auto slot) {
        const ConstView own = piece_of(ConstView(block_to(rank())), begin, count);
        take(pieces(slot, rank() * room * width, own.data), begin, count);
      });
}

template <class Take>
void ShmTransport::exchange_blocks(const Move& move, ConstView in, const Take& take) {
  const std::int64_t block = in.count / size();
  relay_blocks(
      block, size_of(in.dtype), move.choice.way.piece, move.choice.way.streamed,
      [&](int peer) { return in.part(peer * block, block); }, take);
}

}  // namespace tutti::shm
