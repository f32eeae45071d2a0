// Reductions through shared memory.
#include <algorithm>
#include <array>

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti::shm {

void ShmTransport::all_reduce(ConstView in, View out, Reduce reduce) {
  const cpu::Combine combine = combine_of(reduce, size());
  const Signature signature = Signature::of(Operation::all_reduce, in.dtype, in.count, reduce);
  if (in.bytes() <= Arrival::kData) {  // the shortest way, for the smallest messages
    meet_at_once(signature, in, true);
    return reduce_lines(out, combine);
  }
  Call call = begin(signature, in, out, in.bytes());
  // A rank that works in place and alone would overwrite an input that others still read.
  decide(call, call.direct_in && (call.direct_out || !call.any_in_place));
  if (call.small()) {
    cpu::reduce(std::span(&out.data, 1), inputs(call, in, 0), in.count, in.dtype, combine);
  } else if (call.is(Kind::direct)) {
    direct_all_reduce(call, in, out, combine);
  } else if (call.is(Kind::single_copy)) {
    copied_all_reduce(call, in, out, combine);
  } else {
    staged_all_reduce(call, in, out, combine);
  }
  end(call);
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

void ShmTransport::direct_all_reduce(const Call& call, ConstView in, View out,
                                     const cpu::Combine& combine) {
  if (!call.direct_out) {
    cpu::reduce(std::span(&out.data, 1), inputs(call, in, 0), in.count, in.dtype, combine);
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
  cpu::reduce(outputs_, inputs(call, in, share.begin * width), share.count, in.dtype, combine,
              call.choice.way.streamed ? cpu::Stores{1} : cpu::Stores{});
  finish_reading();
}

/**
 * Three steps for each piece, one piece apart from each other: every rank puts what the others
 * reduce into its staging memory; reduces its share of what all have put there; and fetches the
 * others' results. A slot is filled again when its last piece has been fetched or reduced by all,
 * which the steps in between have shown.
 */
void ShmTransport::staged_all_reduce(const Call& call, ConstView in, View out,
                                     const cpu::Combine& combine) {
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t most = call.choice.way.piece / width;
  const bool streamed = call.choice.way.streamed;
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

void ShmTransport::copied_all_reduce(const Call& call, ConstView in, View out,
                                     const cpu::Combine& combine) {
  const std::int64_t width = size_of(in.dtype);
  const Share mine = share_of(in.count, width, size(), rank());
  pull_pieces(call, in, mine.begin, mine.count, [&](auto sources, auto begin, auto count) {
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

void ShmTransport::reduce(ConstView in, View out, Reduce reduce, int root) {
  Signature signature = Signature::of(Operation::reduce, in.dtype, in.count, reduce);
  signature.root = root;
  reduce_to(signature, in, out, combine_of(reduce, size()));
}

void ShmTransport::reduce(ConstView in, View out, const cpu::Combine& combine, int root) {
  Signature signature = Signature::of(Operation::reduce, in.dtype, in.count, combine.kind);
  signature.root = root;
  reduce_to(signature, in, out, combine);
}

void ShmTransport::reduce_to(const Signature& signature, ConstView in, View out,
                             const cpu::Combine& combine) {
  const bool is_root = signature.root == rank();
  Call call = begin(signature, in, is_root ? out : View{}, in.bytes());
  decide(call, call.direct_in);
  const auto combine_into = [&](std::span<const void* const> sources, auto begin, auto count) {
    void* target = out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  };
  if (call.small() || call.is(Kind::direct)) {
    if (is_root) combine_into(inputs(call, in, 0), 0, in.count);
    if (!call.small()) finish_reading();
  } else if (call.is(Kind::single_copy)) {
    if (is_root) pull_pieces(call, in, 0, in.count, combine_into);
    finish_reading();
  } else {
    relay(
        in.count, call.choice.way.piece / size_of(in.dtype), {!is_root, is_root, Part::kAll},
        [&](auto begin, auto count, auto slot) {
          const ConstView source = in.part(begin, count);
          cpu::copy(host_.control().staging(rank()).in[slot].data(), source.data, source.bytes(),
                    call.choice.way.streamed);
        },
        [&](auto begin, auto count, auto slot) {
          combine_into(pieces(slot, 0, in.part(begin, 0).data), begin, count);
        });
  }
  end(call);
}

void ShmTransport::reduce_scatter(ConstView in, View out, Reduce reduce) {
  Call call = begin(Signature::of(Operation::reduce_scatter, in.dtype, out.count, reduce), in, out,
                    in.bytes());
  decide(call, call.direct_in);
  const cpu::Combine combine = combine_of(reduce, size());
  const auto combine_into = [&](std::span<const void* const> sources, auto begin, auto count) {
    void* target = out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  };
  if (call.small() || call.is(Kind::direct)) {
    combine_into(inputs(call, in, rank() * out.bytes()), 0, out.count);
    if (!call.small()) finish_reading();
  } else if (call.is(Kind::single_copy)) {
    pull_pieces(call, in, rank() * out.count, out.count, combine_into);
    finish_reading();
  } else {
    exchange_blocks(call, in, combine_into);
  }
  end(call);
}

}  // namespace tutti::shm
