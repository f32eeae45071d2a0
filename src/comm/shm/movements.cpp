// Collectives through shared memory that move data as they are.
#include <algorithm>

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"

namespace tutti::shm {

void ShmTransport::broadcast(const Call& call) {
  const ConstView in = call.in;
  const View out = call.out;
  const int root = call.root;
  const bool is_root = root == rank();
  Move move = begin(Signature::of(call), is_root ? in : ConstView{}, out, out.bytes());
  // Everybody's output is in one allocation, so if the root's input is there too, all can reach it.
  decide(move, move.direct_out &&
                   (size() == 1 || request_of(root).in.region == request_of(rank()).out.region));
  if (is_root) copy_bytes(out.data, in.data, in.bytes());

  const bool streamed = move.choice.way.streamed;
  if (move.small()) {
    if (!is_root) copy_bytes(out.data, contribution_of(move, root), out.bytes());
  } else if (move.is(Kind::direct)) {
    if (!is_root) {
      cpu::copy(out.data, symmetric_.resolve(root, request_of(root).in), out.bytes(), streamed);
    }
    finish_reading();
  } else if (move.is(Kind::single_copy)) {
    if (!is_root) pull(root, out.data, request_of(root).in_address, out.bytes());
    finish_reading();
  } else {
    relay(
        out.count, move.choice.way.piece / size_of(out.dtype), {is_root, !is_root, root},
        [&](auto begin, auto count, auto slot) {
          const ConstView source = in.part(begin, count);
          cpu::copy(host_.control().staging(root).in[slot].data(), source.data, source.bytes(),
                    streamed);
        },
        [&](auto begin, auto count, auto slot) {
          const View target = out.part(begin, count);
          cpu::copy(target.data, host_.control().staging(root).in[slot].data(), target.bytes(),
                    false);
        });
  }
  end(move);
}

void ShmTransport::gather(const Call& call, std::span<const std::int64_t> counts) {
  const ConstView in = call.in;
  const View out = call.out;
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  // Calls body(peer, block of `out`) for all ranks.
  const auto for_each_block = [&](const auto& body) {
    std::int64_t offset = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const std::int64_t count = counts[static_cast<std::size_t>(peer)];
      body(peer, out.part(offset, count));
      offset += count;
    }
  };
  Move move = begin(Signature::of(call), in, out, longest * width);
  decide(move, move.direct_in);
  const bool streamed = move.choice.way.streamed;
  for_each_block([&](int peer, View block) {
    if (peer == rank()) copy_bytes(block.data, in.data, in.bytes());
  });
  if (move.small() || move.is(Kind::direct)) {
    const auto sources = inputs(move, in, 0);
    for_each_block([&](int peer, View block) {
      if (peer == rank()) return;
      cpu::copy(block.data, sources[static_cast<std::size_t>(peer)], block.bytes(),
                streamed && !move.small());
    });
    if (!move.small()) finish_reading();
  } else if (move.is(Kind::single_copy)) {
    for_each_block([&](int peer, View block) {
      if (peer != rank()) pull(peer, block.data, request_of(peer).in_address, block.bytes());
    });
    finish_reading();
  } else {
    const auto length = [](std::int64_t whole, std::int64_t begin, std::int64_t count) {
      return std::clamp<std::int64_t>(whole - begin, 0, count);
    };
    relay(
        longest, move.choice.way.piece / width, {},
        [&](auto begin, auto count, auto slot) {
          cpu::copy(host_.control().staging(rank()).in[slot].data(), in.part(begin, 0).data,
                    length(in.count, begin, count) * width, streamed);
        },
        [&](auto begin, auto count, auto slot) {
          for_each_block([&](int peer, View block) {
            if (peer == rank()) return;
            cpu::copy(block.part(begin, 0).data, host_.control().staging(peer).in[slot].data(),
                      length(block.count, begin, count) * width, false);
          });
        });
  }
  end(move);
}

void ShmTransport::all_to_all(const Call& call) {
  const ConstView in = call.in;
  const View out = call.out;
  const std::int64_t block = in.count / size();
  const std::int64_t block_bytes = block * size_of(in.dtype);
  Move move = begin(Signature::of(call), in, out, in.bytes());
  // In place, an output overwrites an input that others still have to read: not if it is staged.
  if (move.any_in_place) move.reaches_all = false;
  decide(move, move.direct_in && !move.any_in_place);
  const auto deliver = [&](std::span<const void* const> sources, auto begin, auto count,
                           bool streamed) {
    for (int peer = 0; peer < size(); ++peer) {
      const View target = out.part(peer * block + begin, count);
      const void* source = sources[static_cast<std::size_t>(peer)];
      if (target.data != source) cpu::copy(target.data, source, target.bytes(), streamed);
    }
  };
  if (move.small() || move.is(Kind::direct)) {
    deliver(inputs(move, in, rank() * block_bytes), 0, block,
            move.choice.way.streamed && !move.small());
    if (!move.small()) finish_reading();
  } else if (move.is(Kind::single_copy)) {
    copy_bytes(out.part(rank() * block, 0).data, in.part(rank() * block, 0).data, block_bytes);
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      const auto moved = static_cast<std::uint64_t>(rank() * block_bytes);
      pull(peer, out.part(peer * block, 0).data, request_of(peer).in_address + moved, block_bytes);
    }
    finish_reading();
  } else {
    exchange_blocks(move, in, [&](std::span<const void* const> sources, auto begin, auto count) {
      deliver(sources, begin, count, false);
    });
  }
  end(move);
}

}  // namespace tutti::shm
