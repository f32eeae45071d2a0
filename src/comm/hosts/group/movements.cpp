// Every block goes straight to whom it is for, in windows; short ones of many members by doubling.
#include "comm/hosts/group/movements.hpp"

#include <algorithm>
#include <cstring>

#include "base/memory.hpp"
#include "comm/hosts/group/pipeline.hpp"
#include "comm/hosts/group/shards.hpp"

namespace tutti {
namespace {

/** What has come by then are the blocks from this member's on, round the end: so what a member
 * sends in a step lies in the same two places where it arrives. Two messages to one member go one
 * after the other, as the first may be a long one. */
void gather_doubling(const HostGroup& group, std::byte* data,
                     std::span<const std::int64_t> offsets) {
  const auto blocks = [&](int first, int last) {
    const std::int64_t begin = offsets[static_cast<std::size_t>(first)];
    const std::int64_t end = offsets[static_cast<std::size_t>(std::max(first, last))];
    return std::span(data + begin, static_cast<std::size_t>(end - begin));
  };
  const int size = group.size();
  const int own = group.position();
  for (int known = 1; known < size;) {
    const int more = std::min(known, size - known);
    const int source = group.peer(known);
    const int target = group.peer(size - known);
    GroupBatch before_end(group, Wire::Traffic::collective);
    before_end.recv(blocks(source, std::min(source + more, size)), source);
    before_end.send(blocks(own, std::min(own + more, size)), target);
    before_end.wait();
    GroupBatch behind_end(group, Wire::Traffic::collective);
    behind_end.recv(blocks(0, source + more - size), source);
    behind_end.send(blocks(0, own + more - size), target);
    behind_end.wait();
    known += more;
  }
}

}  // namespace

void all_gather(const HostGroup& group, std::span<const std::byte> in, std::span<std::byte> out) {
  RecycledVector<std::int64_t> offsets;
  for (int i = 0; i <= group.size(); ++i) offsets.push_back(i * std::ssize(in));
  std::byte* const own = out.data() + offsets[static_cast<std::size_t>(group.position())];
  if (!in.empty() && own != in.data()) std::memcpy(own, in.data(), in.size());
  all_gather_v(group, out.data(), offsets);
}

void all_gather_v(const HostGroup& group, std::byte* data, std::span<const std::int64_t> offsets,
                  const std::byte* own) {
  const auto at = static_cast<std::size_t>(group.position());
  std::byte* const place = data + offsets[at];
  if (own == nullptr) own = place;
  Shards shards{data, {offsets.begin(), offsets.end()}, window_for(group.size())};
  const std::int64_t longest = shards.longest();
  if (group.stand_in_groups() && longest <= HostGroup::kSmall) {
    copy_bytes(place, own, offsets[at + 1] - offsets[at]);
    return gather_doubling(group, data, offsets);
  }
  const bool is_long = group.size() == 2 && longest > Wire::kPiece && group.passes_on();
  if (is_long) shards.window = kLongWindow;
  const auto exchange = [&](GroupBatch& batch, std::int64_t number) {
    const auto part = shards.part(group.position(), number);
    const std::span<const std::byte> leaves(own + (part.data() - place), part.size());
    group.in_turns([&](int source, int target) {
      batch.recv(shards.part(source, number), source);
      batch.send(leaves, target);
    });
    copy_bytes(part.data(), leaves.data(), std::ssize(part));
  };
  run_pipeline(group, shards.windows(), windows_under_way(shards.window),
               PipelineStep{exchange, kNothing});
}

bool gathers_ahead(const HostGroup& group, std::int64_t bytes) {
  // So much waits behind headers, in connections or in MPI, until all are known to agree.
  constexpr std::int64_t kMost = std::int64_t{128} * 1024;
  return group.is_centred() && bytes <= kMost;
}

void gather_ahead(const HostGroup& group, std::byte* data, std::span<const std::int64_t> offsets,
                  const std::byte* own, const Agree& agree) {
  Ahead ahead(group, offsets.back());
  const auto block = [&](int member) {
    const auto at = static_cast<std::size_t>(member);
    return std::span(data + offsets[at], static_cast<std::size_t>(offsets[at + 1] - offsets[at]));
  };
  const auto place = block(group.position());
  group.in_turns([&](int /*source*/, int target) { ahead.send({own, place.size()}, target); });
  agree(&ahead);
  group.in_turns([&](int source, int /*target*/) { ahead.batch.recv(block(source), source); });
  copy_bytes(place.data(), own, std::ssize(place));
  ahead.batch.wait();
}

void all_to_all_v(const HostGroup& group, std::byte* in, std::span<const std::int64_t> in_offsets,
                  std::byte* out, std::span<const std::int64_t> out_offsets) {
  const std::int64_t window = window_for(group.size());
  const Shards leaving{in, {in_offsets.begin(), in_offsets.end()}, window};
  const Shards arriving{out, {out_offsets.begin(), out_offsets.end()}, window};
  const auto own = static_cast<std::size_t>(group.position());
  std::copy(in + in_offsets[own], in + in_offsets[own + 1], out + out_offsets[own]);
  const auto exchange = [&](GroupBatch& batch, std::int64_t number) {
    group.in_turns([&](int source, int target) {
      batch.recv(arriving.part(source, number), source);
      batch.send(leaving.part(target, number), target);
    });
  };
  run_pipeline(group, std::max(leaving.windows(), arriving.windows()), Wire::kUnderWay,
               PipelineStep{exchange, kNothing});
}

}  // namespace tutti
