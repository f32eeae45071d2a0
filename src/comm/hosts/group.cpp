// Direct exchange: pipelines of windows between every two members.
#include "comm/hosts/group.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/memory.hpp"
#include "comm/hosts/group_ahead.hpp"
#include "comm/hosts/pipeline.hpp"

namespace tutti {
namespace {

// One piece, which MPI sends without asking.
constexpr std::int64_t kLargestWindow = Wire::kPiece;
constexpr std::int64_t kUnderWay = Wire::kUnderWay;
/** Windows of a shard in a segment: what a host adds up before the first bytes travel, and hands
 * out after the last have come, is little, and the ranks of a host do not meet too often. */
constexpr std::int64_t kSegmentWindows = 4;

/** One piece over a connection, otherwise as many as are posted at once. */
constexpr std::int64_t kLongWindow = Wire::kLongPiece;
static_assert(kLongWindow <= Wire::kPosted * Wire::kPiece);
/** The same where the ranks of a host meet for each. */
constexpr std::int64_t kSharedWindow = std::int64_t{128} * 1024;

/** Over connections that are not fast the root of a long reduction adds up nothing: its link has to
 * bring the sums alone then, and not also what the others contribute to a share of its own. It
 * takes the sums of some windows while later ones are on their way to those who add them up: so
 * there are many, and few leave before the sums of the first, which stand behind them. The more
 * owners there are, the more messages are a window, so there is to be so much for each of them: a
 * share has at least this many bytes for each owner but its own. */
constexpr std::int64_t kLeastToSpareRoot = std::int64_t{128} * 1024;
constexpr std::int64_t kFewestSparingWindows = 16;
constexpr std::int64_t kSparingUnderWay = 2;

}  // namespace

std::int64_t HostGroup::window_for(int members) {
  constexpr std::int64_t kSmallestWindow = 1024;
  const std::int64_t fair = kMostScratch / (kUnderWay * members) / kCacheLine * kCacheLine;
  static_assert(kUnderWay * 4096 * kSmallestWindow <= kMostScratch);
  return std::clamp(fair, kSmallestWindow, kLargestWindow);
}

HostGroup::HostGroup(Wire& wire, std::vector<int> members, bool alone, Lane lane)
    : wire_(wire), members_(std::move(members)), alone_(alone), lane_(lane) {
  position_ = position_of(wire_.rank());
}

void HostGroup::send(Batch& batch, std::span<const std::byte> part, int position) {
  batch.send(part.data(), std::ssize(part), members_[static_cast<std::size_t>(position)]);
}

void HostGroup::recv(Batch& batch, std::span<std::byte> part, int position) {
  batch.recv(part.data(), std::ssize(part), members_[static_cast<std::size_t>(position)]);
}

void HostGroup::pass_on(Batch& batch, std::span<std::byte> part, int source, int target) {
  batch.pass_on(part.data(), std::ssize(part), members_[static_cast<std::size_t>(source)],
                members_[static_cast<std::size_t>(target)]);
}

// --- Pipelines ----------------------------------------------------------------------------------

RecycledVector<std::int64_t> HostGroup::even_offsets(std::int64_t bytes, int without) const {
  const int owners = without < 0 ? size() : size() - 1;
  const std::int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const std::int64_t share = (lines + owners - 1) / owners * kCacheLine;
  RecycledVector<std::int64_t> offsets{0};
  for (int owner = 0; owner < size(); ++owner) {
    offsets.push_back(std::min(bytes, offsets.back() + (owner == without ? 0 : share)));
  }
  return offsets;
}

/** to = the combination of all members' contributions; those of the others lie `stride` bytes
 * apart. */
void HostGroup::combine_here(std::byte* to, const std::byte* own, const std::byte* others,
                             std::int64_t stride, std::int64_t bytes, DType dtype,
                             const cpu::Combine& combine) {
  RecycledVector<const void*> inputs;
  for (int member = 0; member < size(); ++member) {
    inputs.push_back(member == position_ ? own : others + member * stride);
  }
  void* output = to;
  cpu::reduce({&output, 1}, inputs, bytes / size_of(dtype), dtype, combine);
}

template <class Part, class Own, class Before, class After>
void HostGroup::reduce_shards(const Part& part, const Own& own, const WindowPlan& windows,
                              DType dtype, const cpu::Combine& combine, int receivers,
                              const Agree& agree, const Before& before, const After& after) {
  const std::int64_t window = windows.bytes;
  const std::int64_t depth = windows.under_way;
  const Scratch memory(wire_.scratch(), depth * size() * window);
  std::optional<Ahead> ahead;
  const auto received = [&](std::int64_t number, int member) {
    return memory.data() + ((number % depth) * size() + member) * window;
  };
  const auto exchange = [&](auto& batch, std::int64_t number, std::size_t bytes) {
    for (int distance = 1; distance < size(); ++distance) {
      const int source = peer(size() - distance);
      recv(batch, {received(number, source), bytes}, source);
      send(batch, own(peer(distance), number), peer(distance));
    }
  };
  const auto contribute = [&](Batch& batch, std::int64_t number) {
    before(number);
    const std::size_t bytes = part(position_, number).size();
    if (number > 0 || !agree) return exchange(batch, number, bytes);
    ahead.emplace(*this, window);
    exchange(*ahead, number, bytes);
    agree();
  };
  const auto add = [&](std::int64_t number) {
    if (number == 0 && ahead) ahead->batch.wait();
    const auto to = part(position_, number);
    combine_here(to.data(), own(position_, number).data(), received(number, 0), window,
                 std::ssize(to), dtype, combine);
  };
  const auto spread = [&](Batch& batch, std::int64_t number) {
    const auto gets = [&](int member) { return receivers == kEverybody || receivers == member; };
    for (int distance = 1; distance < size(); ++distance) {
      const int source = peer(size() - distance);
      if (gets(position_)) recv(batch, part(source, number), source);
      const int target = peer(distance);
      if (gets(target)) send(batch, part(position_, number), target);
    }
  };
  run_pipeline(wire_, windows.count, depth, PipelineStep{contribute, add},
               PipelineStep{spread, after});
}

void HostGroup::reduce_shards(const Shards& shards, DType dtype, const cpu::Combine& combine,
                              int receivers) {
  const auto part = [&](int owner, std::int64_t number) { return shards.part(owner, number); };
  reduce_shards(part, part, {shards.windows(), shards.window}, dtype, combine, receivers, {},
                kNothing, kNothing);
}

// --- Reductions ---------------------------------------------------------------------------------

/** Every member sends all it has to all others, and all add alike. */
void HostGroup::reduce_whole(std::byte* data, std::int64_t bytes, DType dtype,
                             const cpu::Combine& combine) {
  const Scratch memory(wire_.scratch(), size() * bytes);
  std::byte* const received = memory.data();
  Batch batch(wire_, Wire::Traffic::collective);
  const auto length = static_cast<std::size_t>(bytes);
  for (int distance = 1; distance < size(); ++distance) {
    const int source = peer(size() - distance);
    recv(batch, {received + source * bytes, length}, source);
    send(batch, {data, length}, peer(distance));
  }
  batch.wait();
  combine_here(data, data, received, bytes, bytes, dtype, combine);
}

Segments HostGroup::direct_segments(std::int64_t bytes) const {
  const int owners = size() * lane_.of;
  if (has_long_windows(bytes)) {
    return {bytes, owners, alone_ ? kLongWindow : kSharedWindow, 1, kCacheLine};
  }
  return {bytes, owners, window_for(size()), kSegmentWindows, kCacheLine};
}

void HostGroup::all_reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine,
                           const Around& around) {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t width = size_of(dtype);
  const bool ahead = goes_ahead(count * width);
  if (around.agree && !ahead) around.agree();
  if (goes_whole(count * width)) {
    around.before(0, count);
    if (around.first != nullptr) copy_bytes(begin, around.first, count * width);
    reduce_whole(begin, count * width, dtype, combine);
    return around.after(0, count);
  }
  const Segments segments = segments_of(count * width);
  const SegmentCalls calls{segments, around, width};
  if (stand_in_groups()) {
    reduce_grouped(begin, segments, dtype, combine, kEverybody, calls);
  } else if (is_pair(count * width)) {
    reduce_pair(begin, segments, dtype, combine, calls);
  } else {
    reduce_segments(begin, segments, dtype, combine, calls, ahead ? around.agree : Agree());
  }
}

void HostGroup::all_reduce_in_order(void* data, std::int64_t count, DType dtype,
                                    const cpu::Combine& combine) {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t width = size_of(dtype);
  if (goes_whole(count * width)) return reduce_whole(begin, count * width, dtype, combine);
  const Segments segments = direct_segments(count * width);
  reduce_segments(begin, segments, dtype, combine, {segments, {}, width}, {});
}

void HostGroup::reduce_segments(std::byte* data, const Segments& segments, DType dtype,
                                const cpu::Combine& combine, const SegmentCalls& calls,
                                const Agree& agree) {
  const auto before = [&](std::int64_t window) { calls.before(window); };
  const auto after = [&](std::int64_t window) { calls.after(window); };
  const int before_ours = lane_.number * size();  // the owners of other lanes
  const auto part = [&](int owner, std::int64_t window) {
    return segments.part(data, before_ours + owner, window);
  };
  const void* const first = calls.around.first != nullptr ? calls.around.first : data;
  const void* const others = calls.around.others != nullptr ? calls.around.others : data;
  const auto own = [&](int owner, std::int64_t window) {
    const void* const base = segments.segment_of(window) == 0 ? first : others;
    return segments.part(static_cast<const std::byte*>(base), before_ours + owner, window);
  };
  static_assert(windows_under_way(kLongWindow) * kMostDirect * kLongWindow <= kMostScratch);
  const bool is_long = segments.window() > kLargestWindow;  // of agreed, so exact lengths
  const std::int64_t window = is_long ? segments.longest_part() : segments.window();
  reduce_shards(part, own, {segments.windows(), window}, dtype, combine, kEverybody, agree, before,
                after);
}

void HostGroup::reduce_scatter_v(void* data, std::span<const std::int64_t> offsets, DType dtype,
                                 const cpu::Combine& combine) {
  Shards shards{static_cast<std::byte*>(data), {}, window_for(size())};
  for (const std::int64_t offset : offsets) shards.offsets.push_back(offset * size_of(dtype));
  reduce_shards(shards, dtype, combine, kNobody);
}

bool HostGroup::spares_root(std::int64_t bytes) const {
  const std::int64_t others = size() - 1;
  return reduces_in_long_windows(bytes) && is_centred() && !wire_.is_fast() &&
         bytes >= others * (others - 1) * kLeastToSpareRoot;
}

void HostGroup::reduce(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine,
                       int root, const void* from) {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t bytes = count * size_of(dtype);
  if (from == nullptr) from = data;
  if (!goes_whole(bytes) && stand_in_groups()) {
    copy_bytes(begin, from, bytes);
    const Segments segments = segments_of(bytes);
    return reduce_grouped(begin, segments, dtype, combine, root, {segments, {}, size_of(dtype)});
  }
  const bool is_shared = !goes_whole(bytes) && size() > 2;
  const bool is_spared = spares_root(bytes);
  Shards sums{begin, {}, window_for(size())};
  if (is_shared) {
    sums.offsets = even_offsets(bytes, is_spared ? root : kNobody);
  } else {  // the root owns everything: one round, and between two members not a byte more
    sums.offsets.assign(members_.size() + 1, 0);
    std::fill(sums.offsets.begin() + root + 1, sums.offsets.end(), bytes);
  }
  if (reduces_in_long_windows(bytes)) {  // with room for no more than a shard
    const std::int64_t fewest = is_spared ? kFewestSparingWindows : 1;
    const std::int64_t part = (sums.longest() + fewest - 1) / fewest;
    sums.window = std::min(is_spared ? kSharedWindow : kLongWindow,
                           (part + kCacheLine - 1) / kCacheLine * kCacheLine);
  }
  WindowPlan windows{sums.windows(), sums.window};
  if (is_spared) windows.under_way = kSparingUnderWay;
  const Shards own{static_cast<std::byte*>(const_cast<void*>(from)), sums.offsets, sums.window};
  reduce_shards([&](int owner, std::int64_t number) { return sums.part(owner, number); },
                [&](int owner, std::int64_t number) { return own.part(owner, number); }, windows,
                dtype, combine, is_shared ? root : kNobody, {}, kNothing, kNothing);
}

// --- Movements ----------------------------------------------------------------------------------

void HostGroup::all_gather(std::span<const std::byte> in, std::span<std::byte> out) {
  RecycledVector<std::int64_t> offsets;
  for (int i = 0; i <= size(); ++i) offsets.push_back(i * std::ssize(in));
  std::byte* const own = out.data() + offsets[static_cast<std::size_t>(position_)];
  if (!in.empty() && own != in.data()) std::memcpy(own, in.data(), in.size());
  all_gather_v(out.data(), offsets);
}

void HostGroup::all_gather_v(std::byte* data, std::span<const std::int64_t> offsets,
                             const std::byte* own) {
  std::byte* const place = data + offsets[static_cast<std::size_t>(position_)];
  if (own == nullptr) own = place;
  Shards shards{data, {offsets.begin(), offsets.end()}, window_for(size())};
  const std::int64_t longest = shards.longest();
  if (stand_in_groups() && longest <= kSmall) {
    copy_bytes(place, own, offsets[static_cast<std::size_t>(position_) + 1] - (place - data));
    return gather_doubling(data, offsets);
  }
  const bool is_long = size() == 2 && longest > Wire::kPiece && wire_.passes_on(members_);
  if (is_long) shards.window = kLongWindow;
  const auto exchange = [&](Batch& batch, std::int64_t number) {
    const auto part = shards.part(position_, number);
    const std::span<const std::byte> leaves(own + (part.data() - place), part.size());
    for (int distance = 1; distance < size(); ++distance) {
      const int source = peer(size() - distance);
      recv(batch, shards.part(source, number), source);
      send(batch, leaves, peer(distance));
    }
    copy_bytes(part.data(), leaves.data(), std::ssize(part));
  };
  run_pipeline(wire_, shards.windows(), windows_under_way(shards.window),
               PipelineStep{exchange, kNothing});
}

bool HostGroup::gathers_ahead(std::int64_t bytes) const {
  // So much waits behind headers, in connections or in MPI, until all are known to agree.
  constexpr std::int64_t kMost = std::int64_t{128} * 1024;
  return is_centred() && bytes <= kMost;
}

void HostGroup::gather_ahead(std::byte* data, std::span<const std::int64_t> offsets,
                             const std::byte* own, const Agree& agree) {
  Ahead ahead(*this, offsets.back());
  const auto block = [&](int member) {
    const auto at = static_cast<std::size_t>(member);
    return std::span(data + offsets[at], static_cast<std::size_t>(offsets[at + 1] - offsets[at]));
  };
  const auto place = block(position_);
  for (int distance = 1; distance < size(); ++distance) {
    send(ahead, {own, place.size()}, peer(distance));
  }
  agree();
  for (int distance = 1; distance < size(); ++distance) {
    const int source = peer(size() - distance);
    recv(ahead.batch, block(source), source);
  }
  copy_bytes(place.data(), own, std::ssize(place));
  ahead.batch.wait();
}

/** What has come by then are the blocks from this member's on, round the end: so what a member
 * sends in a step lies in the same two places where it arrives. Two messages to one member go one
 * after the other, as the first may be a long one. */
void HostGroup::gather_doubling(std::byte* data, std::span<const std::int64_t> offsets) {
  const auto blocks = [&](int first, int last) {
    const std::int64_t begin = offsets[static_cast<std::size_t>(first)];
    const std::int64_t end = offsets[static_cast<std::size_t>(std::max(first, last))];
    return std::span(data + begin, static_cast<std::size_t>(end - begin));
  };
  for (int known = 1; known < size();) {
    const int more = std::min(known, size() - known);
    const int source = peer(known);
    const int target = peer(size() - known);
    Batch before_end(wire_, Wire::Traffic::collective);
    recv(before_end, blocks(source, std::min(source + more, size())), source);
    send(before_end, blocks(position_, std::min(position_ + more, size())), target);
    before_end.wait();
    Batch behind_end(wire_, Wire::Traffic::collective);
    recv(behind_end, blocks(0, source + more - size()), source);
    send(behind_end, blocks(0, position_ + more - size()), target);
    behind_end.wait();
    known += more;
  }
}

void HostGroup::all_to_all_v(std::byte* in, std::span<const std::int64_t> in_offsets,
                             std::byte* out, std::span<const std::int64_t> out_offsets) {
  const std::int64_t window = window_for(size());
  const Shards leaving{in, {in_offsets.begin(), in_offsets.end()}, window};
  const Shards arriving{out, {out_offsets.begin(), out_offsets.end()}, window};
  const auto own = static_cast<std::size_t>(position_);
  std::copy(in + in_offsets[own], in + in_offsets[own + 1], out + out_offsets[own]);
  const auto exchange = [&](Batch& batch, std::int64_t number) {
    for (int distance = 1; distance < size(); ++distance) {
      const int source = peer(size() - distance);
      recv(batch, arriving.part(source, number), source);
      send(batch, leaving.part(peer(distance), number), peer(distance));
    }
  };
  run_pipeline(wire_, std::max(leaving.windows(), arriving.windows()), kUnderWay,
               PipelineStep{exchange, kNothing});
}

}  // namespace tutti
