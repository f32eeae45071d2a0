// Collectives through shared memory.
#include "communicator/shm/transport.hpp"

#include <algorithm>

#include "communicator/memory.hpp"
#include "communicator/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

/** Calls body(begin, count, parity) for pieces of at most `most` elements. */
template <class Body>
void for_each_piece(std::int64_t count, std::int64_t most, const Body& body) {
  std::size_t parity = 0;
  for (std::int64_t begin = 0; begin < count; begin += most, parity ^= 1U) {
    body(begin, std::min(most, count - begin), parity);
  }
}

}  // namespace

ShmTransport::ShmTransport(const UniqueId& id, int rank, std::vector<int> names,
                           std::chrono::milliseconds timeout, std::optional<Party> party)
    : host_(id, rank, std::move(names), timeout, std::move(party)), symmetric_(rank) {}

std::string ShmTransport::describe() const {
  return "shared memory among " + std::to_string(size()) + " ranks of one host";
}

void ShmTransport::abort(std::string_view reason) noexcept {
  const int name = host_.name_of(rank());
  host_.fail_lost(std::span(&name, 1), reason);
}

// --- Arriving -----------------------------------------------------------------------------------

const Request& ShmTransport::request_of(int peer) const {
  return host_.control().slot(peer).requests[sequence_ & 1U];
}

void ShmTransport::arrive(const Request& request) {
  host_.check_failure();
  ++sequence_;
  Request& slot = host_.control().slot(rank()).requests[sequence_ & 1U];
  slot = request;
  if (slot.signature.sequence == 0) slot.signature.sequence = sequence_;
  host_.synchronise();
}

bool ShmTransport::requests_match() const {
  const std::uint64_t own = request_of(rank()).signature.hash();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && request_of(peer).signature.hash() != own) return false;
  }
  return true;
}

std::vector<RankSignature> ShmTransport::compared() const {
  std::vector<RankSignature> all;
  for (int peer = 0; peer < size(); ++peer) {
    all.push_back({host_.name_of(peer), request_of(peer).signature});
  }
  return all;
}

bool ShmTransport::compare(const Signature& signature) {
  Request request;
  request.signature = signature;
  arrive(request);
  return requests_match();
}

ShmTransport::Access ShmTransport::begin(Signature signature, ConstView in, View out, bool small) {
  Request request{signature, symmetric_.locate(in.data, in.bytes()),
                  symmetric_.locate(out.data, out.bytes()), in.data == out.data ? 1U : 0U};
  if (small) {
    auto& staging = host_.control().staging(rank()).small[(sequence_ + 1) & 1U];
    copy_bytes(staging.data(), in.data, in.bytes());
  }
  arrive(request);
  if (!requests_match()) {
    const std::string text = describe_mismatch(compared());
    host_.fail_mismatch(text);
    throw MismatchError(text);
  }
  Access access;
  access.small = small;
  access.direct_in = access.direct_out = true;
  const Request& own = request_of(rank());
  for (int peer = 0; peer < size() && size() > 1; ++peer) {
    const Request& other = request_of(peer);
    access.direct_in =
        access.direct_in && other.in.region == own.in.region && own.in.region != Location::kPrivate;
    access.direct_out = access.direct_out && other.out.region == own.out.region &&
                        own.out.region != Location::kPrivate;
    access.any_in_place = access.any_in_place || other.in_place != 0;
  }
  return access;
}

const std::byte* ShmTransport::input_of(int peer, ConstView own) const {
  if (peer == rank()) return static_cast<const std::byte*>(own.data);
  return symmetric_.resolve(peer, request_of(peer).in);
}

std::byte* ShmTransport::output_of(int peer, View own) const {
  if (peer == rank()) return static_cast<std::byte*>(own.data);
  return symmetric_.resolve(peer, request_of(peer).out);
}

std::vector<const void*> ShmTransport::inputs(const Access& access, ConstView own,
                                              std::int64_t offset) const {
  std::vector<const void*> starts;
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* start = access.small && peer != rank()
                                 ? host_.control().staging(peer).small[sequence_ & 1U].data()
                                 : input_of(peer, own);
    starts.push_back(start + offset);
  }
  return starts;
}

std::vector<const void*> ShmTransport::pieces(std::size_t parity, std::int64_t offset,
                                              const void* own) const {
  std::vector<const void*> starts;
  for (int peer = 0; peer < size(); ++peer) {
    starts.push_back(host_.control().staging(peer).in[parity].data() + offset);
  }
  starts[static_cast<std::size_t>(rank())] = own;
  return starts;
}

// --- Reductions ---------------------------------------------------------------------------------

void ShmTransport::all_reduce(ConstView in, View out, Reduce reduce) {
  const Access access = begin(Signature::of(Operation::all_reduce, in.dtype, in.count, reduce), in,
                              out, in.bytes() <= Staging::kSmall);
  const cpu::Combine combine = combine_of(reduce, size());
  if (access.small) {
    cpu::reduce(std::span(&out.data, 1), inputs(access, in, 0), in.count, in.dtype, combine);
    return;
  }
  // A rank that works in place and alone would overwrite an input that others still read.
  if (!access.direct_in || (access.any_in_place && !access.direct_out)) {
    staged_all_reduce(in, out, combine);
    return;
  }
  if (access.direct_out) {
    const std::int64_t width = size_of(in.dtype);
    const Share share = share_of(in.count, width, size(), rank());
    std::vector<void*> outs;
    for (int peer = 0; peer < size(); ++peer) {
      outs.push_back(output_of(peer, out) + share.begin * width);
    }
    cpu::reduce(outs, inputs(access, in, share.begin * width), share.count, in.dtype, combine);
  } else {
    cpu::reduce(std::span(&out.data, 1), inputs(access, in, 0), in.count, in.dtype, combine);
  }
  host_.synchronise();
}

void ShmTransport::staged_all_reduce(ConstView in, View out, const cpu::Combine& combine) {
  const std::int64_t width = size_of(in.dtype);
  for_each_piece(in.count, Staging::kPiece / width, [&](auto begin, auto count, auto parity) {
    const ConstView source = in.part(begin, count);
    const View target = out.part(begin, count);
    Staging& own = host_.control().staging(rank());
    copy_bytes(own.in[parity].data(), source.data, source.bytes());
    host_.synchronise();

    const Share share = share_of(count, width, size(), rank());
    const std::array<void*, 2> outs{target.part(share.begin, share.count).data,
                                    own.out[parity].data()};
    cpu::reduce(outs, pieces(parity, share.begin * width, source.part(share.begin, 0).data),
                share.count, in.dtype, combine);
    host_.synchronise();

    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Share theirs = share_of(count, width, size(), peer);
      copy_bytes(target.part(theirs.begin, theirs.count).data,
                 host_.control().staging(peer).out[parity].data(), theirs.count * width);
    }
  });
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
  const Access access = begin(signature, in, is_root ? out : View{}, in.bytes() <= Staging::kSmall);
  if (access.small || access.direct_in) {
    if (is_root) {
      cpu::reduce(std::span(&out.data, 1), inputs(access, in, 0), in.count, in.dtype, combine);
    }
    if (!access.small) host_.synchronise();
    return;
  }
  for_each_piece(in.count, Staging::kPiece / size_of(in.dtype),
                 [&](auto begin, auto count, auto parity) {
                   const ConstView source = in.part(begin, count);
                   Staging& own = host_.control().staging(rank());
                   if (!is_root) copy_bytes(own.in[parity].data(), source.data, source.bytes());
                   host_.synchronise();
                   if (!is_root) return;
                   void* target = out.part(begin, count).data;
                   cpu::reduce(std::span(&target, 1), pieces(parity, 0, source.data), count,
                               in.dtype, combine);
                 });
}

void ShmTransport::reduce_scatter(ConstView in, View out, Reduce reduce) {
  const Access access = begin(Signature::of(Operation::reduce_scatter, in.dtype, out.count, reduce),
                              in, out, in.bytes() <= Staging::kSmall);
  const cpu::Combine combine = combine_of(reduce, size());
  if (access.small || access.direct_in) {
    cpu::reduce(std::span(&out.data, 1), inputs(access, in, rank() * out.bytes()), out.count,
                in.dtype, combine);
    if (!access.small) host_.synchronise();
    return;
  }
  exchange_blocks(in, [&](std::span<const void* const> sources, auto begin, auto count) {
    void* target = out.part(begin, count).data;
    cpu::reduce(std::span(&target, 1), sources, count, in.dtype, combine);
  });
}

// --- Movements ----------------------------------------------------------------------------------

void ShmTransport::broadcast(ConstView in, View out, int root) {
  Signature signature = Signature::of(Operation::broadcast, out.dtype, out.count);
  signature.root = root;
  const bool is_root = root == rank();
  const ConstView source = is_root ? in : ConstView{};
  const bool small = out.bytes() <= Staging::kSmall;
  const Access access = begin(signature, source, out, small);
  if (is_root) copy_bytes(out.data, in.data, in.bytes());

  if (small) {
    if (!is_root) {
      copy_bytes(out.data, host_.control().staging(root).small[sequence_ & 1U].data(), out.bytes());
    }
    return;
  }
  // Everybody's output is in one allocation, so if the root's input is there too, all can reach it.
  const Location& origin = request_of(root).in;
  if (access.direct_out && (size() == 1 || origin.region == request_of(rank()).out.region)) {
    if (!is_root) copy_bytes(out.data, symmetric_.resolve(root, origin), out.bytes());
    host_.synchronise();
    return;
  }
  for_each_piece(out.count, Staging::kPiece / size_of(out.dtype),
                 [&](auto begin, auto count, auto parity) {
                   auto& staging = host_.control().staging(root).in[parity];
                   const View target = out.part(begin, count);
                   if (is_root)
                     copy_bytes(staging.data(), in.part(begin, count).data, target.bytes());
                   host_.synchronise();
                   if (!is_root) copy_bytes(target.data, staging.data(), target.bytes());
                 });
}

void ShmTransport::all_gather(ConstView in, View out) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), in.count);
  gather(Signature::of(Operation::all_gather, in.dtype, in.count), in, out, counts);
}

void ShmTransport::all_gather_v(ConstView in, View out, std::span<const std::int64_t> counts) {
  Signature signature = Signature::of(Operation::all_gather_v, in.dtype, out.count);
  signature.counts = hash_counts(counts);
  signature.own_count = in.count;
  gather(signature, in, out, counts);
}

void ShmTransport::gather(Signature signature, ConstView in, View out,
                          std::span<const std::int64_t> counts) {
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<View> blocks;  // of `out`, by rank
  std::int64_t offset = 0;
  for (const std::int64_t count : counts) {
    blocks.push_back(out.part(offset, count));
    offset += count;
  }
  const auto block_of = [&](int peer) { return blocks[static_cast<std::size_t>(peer)]; };

  const Access access = begin(signature, in, out, longest * width <= Staging::kSmall);
  copy_bytes(block_of(rank()).data, in.data, in.bytes());
  if (access.small || access.direct_in) {
    const auto sources = inputs(access, in, 0);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      copy_bytes(block_of(peer).data, sources[static_cast<std::size_t>(peer)],
                 block_of(peer).bytes());
    }
    if (!access.small) host_.synchronise();
    return;
  }
  for_each_piece(longest, Staging::kPiece / width, [&](auto begin, auto count, auto parity) {
    const auto length = [&](std::int64_t whole) {
      return std::clamp<std::int64_t>(whole - begin, 0, count);
    };
    Staging& own = host_.control().staging(rank());
    copy_bytes(own.in[parity].data(), in.part(begin, 0).data, length(in.count) * width);
    host_.synchronise();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      copy_bytes(block_of(peer).part(begin, 0).data,
                 host_.control().staging(peer).in[parity].data(),
                 length(block_of(peer).count) * width);
    }
  });
}

void ShmTransport::all_to_all(ConstView in, View out) {
  const std::int64_t block = in.count / size();
  const Access access = begin(Signature::of(Operation::all_to_all, in.dtype, block), in, out,
                              in.bytes() <= Staging::kSmall);
  const std::int64_t block_bytes = block * size_of(in.dtype);
  // In place, an output overwrites an input that others still have to read: not if it is staged.
  if (access.small || (access.direct_in && !access.any_in_place)) {
    const auto sources = inputs(access, in, rank() * block_bytes);
    for (int peer = 0; peer < size(); ++peer) {
      copy_bytes(out.part(peer * block, block).data, sources[static_cast<std::size_t>(peer)],
                 block_bytes);
    }
    if (!access.small) host_.synchronise();
    return;
  }
  exchange_blocks(in, [&](std::span<const void* const> sources, auto begin, auto count) {
    for (int peer = 0; peer < size(); ++peer) {
      const View target = out.part(peer * block + begin, count);
      copy_bytes(target.data, sources[static_cast<std::size_t>(peer)], target.bytes());
    }
  });
}

template <class Take>
void ShmTransport::exchange_blocks(ConstView in, const Take& take) {
  const std::int64_t width = size_of(in.dtype);
  const std::int64_t block = in.count / size();
  const std::int64_t room = std::max<std::int64_t>(Staging::kPiece / size() / width, 1);
  for_each_piece(block, room, [&](auto begin, auto count, auto parity) {
    Staging& own = host_.control().staging(rank());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      copy_bytes(own.in[parity].data() + peer * room * width, in.part(peer * block + begin, 0).data,
                 count * width);
    }
    host_.synchronise();
    take(pieces(parity, rank() * room * width, in.part(rank() * block + begin, 0).data), begin,
         count);
  });
}

void ShmTransport::barrier() { begin_checked(Signature::of(Operation::barrier, DType::u8, 0)); }

}  // namespace tutti::shm
