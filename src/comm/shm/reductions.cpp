// Reductions through shared memory.
#include <algorithm>
#include <array>

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti::shm {

void ShmTransport::all_reduce(const Call& call) {
  const ConstView in = call.in;
  const View out = call.out;
  const cpu::Combine combine = combine_of(call.reduction, size());
  const Signature signature = Signature::of(call);
  if (in.bytes() <= Arrival::kData) {  // the shortest way, for the smallest messages
    meet_at_once(signature, in, true);
    return reduce_lines(out, combine);
  }
  Move move = begin(signature, in, out, in.bytes());
  // A rank that works in place and alone would overwrite an input that others still read.
  decide(move, move.direct_in && (move.direct_out || !move.any_in_place));
  if (move.small()) {
    cpu::reduce(std::span(&out.data, 1), inputs(move, in, 0), in.count, in.dtype, combine);
  } else if (move.is(Kind::direct)) {
    direct_all_reduce(move, in, out, combine);
  } else if (move.is(Kind::single_copy)) {
    copied_all_reduce(move, in, out, combine);
  } else {
    staged_all_reduce(move, in, out, combine);
  }
  end(move);
}

void ShmTransport::reduce_lines(View out, const cpu::Combine& combine) {
  // Lines are zeros behind the contributions: up to half of one, whole vectors are faster.
  constexpr std::int64_t kHalf = 32;
  alignas(kHalf) std::array<std::byte, Arrival::kData> result;
  const std::int64_t bytes = out.bytes() <= kHalf ? kHalf : out.bytes();
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = arrival_of(peer).data.data();
  }
  void* const target = result.data();
  cpu::reduce(std::span(&target, 1), inputs_, bytes / size_of(out.dtype), out.dtype, combine);
  copy_bytes(out.data, target, out.bytes());
  host_.check_own_loss();
}

void ShmTransport::direct_all_reduce(const Move& move, ConstView in, View out,
                                     const cpu::Combine& combine) {
  if (!move.direct_out) {
    cpu::reduce(std::span(&out.data, 1), inputs(move, in, 0), in.count, in.dtype, combine);
    finish_reading();
    return;
  }
  const std::int64_t width = size_of(in.dtype);
  const Share share = share_of(in.count, width, size(), rank());
  // This rank's own output first: it is the one that stays in its cache.
  outputs_.clear();
  outputs_.push_back(output_of(rank(), out) + share.begin * width);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) outputs_.push_back(output_of(peer, out) + share.begin * width);
  }
  cpu::reduce(outputs_, inputs(move, in, share.begin * width), share.count, in.dtype, combine,
              move.choice.way.streamed ? cpu::Stores{1} : cpu::Stores{});
  finish_reading();
}

/**
 * Three steps for each piece, one piece apart from each other: every rank puts what the others
 * reduce into its staging memory; reduces its share of what all have put there; and fetches the
 * others' results. A slot is filled again when its last piece has been fetched or reduced by all,
 * which the steps in between have shown.
 */
void ShmTransport::staged_all_reduce(const Move& move, ConstView in, View out,
                                     const cpu::Combine& combine) {
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t most = move.choice.way.piece / width;
  const bool streamed = move.choice.way.streamed;
  const auto total = static_cast<std::uint32_t>((in.count + most - 1) / most);
  const std::uint32_t base = pieces_;
  RankSlot& slot = host_.control().slot(rank());
  Staging& own = host_.control().staging(rank());
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
    host_.wait_for_all(&RankSlot::staged, base + piece + 1);
    cpu::reduce(outs, pieces(place, mine.begin * width, in.part(begin, 0).data), mine.count,
                in.dtype, combine, streamed ? cpu::Stores{1} : cpu::Stores{});
    slot.taken.publish(base + piece + 1);
  };
  const auto fetch = [&](std::uint32_t piece) {
    host_.wait_for_all(&RankSlot::taken, base + piece + 1);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Share theirs = share_in(piece, peer);
      cpu::copy(out.part(std::int64_t{piece} * most + theirs.begin, 0).data,
                host_.control().staging(peer).out[piece % Staging::kSlots].data(),
                theirs.count * width, false);
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

void ShmTransport::copied_all_reduce(const Move& move, ConstView in, View out,
                                     const cpu::Combine& combine) {
  const std::int64_t width = size_of(in.dtype);
  const Share mine = share_of(in.count, width, size(), rank());
  pull_pieces(move, in, mine.begin, mine.count, [&](auto sources, auto begin, auto count) {
    void* target = out.part(mine.begin + begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  });
  host_.synchronise();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // not all from the same rank at once
    const Share theirs = share_of(in.count, width, size(), peer);
    const auto moved = static_cast<std::uint64_t>(theirs.begin * width);
    pull(peer, out.part(theirs.begin, 0).data, request_of(peer).out_address + moved,
         theirs.count * width);
  }
  finish_reading();
}

void ShmTransport::reduce(const Call& call, const cpu::Combine& combine) {
  const ConstView in = call.in;
  const View out = call.out;
  const bool is_root = call.root == rank();
  Move move = begin(Signature::of(call), in, is_root ? out : View{}, in.bytes());
  decide(move, move.direct_in);
  const auto combine_into = [&](std::span<const void* const> sources, auto begin, auto count) {
    void* target = out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  };
  if (move.small() || move.is(Kind::direct)) {
    if (is_root) combine_into(inputs(move, in, 0), 0, in.count);
    if (!move.small()) finish_reading();
  } else if (move.is(Kind::single_copy)) {
    if (is_root) pull_pieces(move, in, 0, in.count, combine_into);
    finish_reading();
  } else {
    relay(
        in.count, move.choice.way.piece / size_of(in.dtype), {!is_root, is_root, Part::kAll},
        [&](auto begin, auto count, auto slot) {
          const ConstView source = in.part(begin, count);
          cpu::copy(host_.control().staging(rank()).in[slot].data(), source.data, source.bytes(),
                    move.choice.way.streamed);
        },
        [&](auto begin, auto count, auto slot) {
          combine_into(pieces(slot, 0, in.part(begin, 0).data), begin, count);
        });
  }
  end(move);
}

void ShmTransport::reduce_scatter(const Call& call) {
  const ConstView in = call.in;
  const View out = call.out;
  Move move = begin(Signature::of(call), in, out, in.bytes());
  decide(move, move.direct_in);
  const cpu::Combine combine = combine_of(call.reduction, size());
  const auto combine_into = [&](std::span<const void* const> sources, auto begin, auto count) {
    void* target = out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  };
  if (move.small() || move.is(Kind::direct)) {
    combine_into(inputs(move, in, rank() * out.bytes()), 0, out.count);
    if (!move.small()) finish_reading();
  } else if (move.is(Kind::single_copy)) {
    pull_pieces(move, in, rank() * out.count, out.count, combine_into);
    finish_reading();
  } else {
    exchange_blocks(move, in, combine_into);
  }
  end(move);
}

}  // namespace tutti::shm
