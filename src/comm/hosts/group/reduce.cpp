// Reductions in shards, of which the root adds up one, or none, or all.
#include "comm/hosts/group/reduce.hpp"

#include <algorithm>

#include "base/memory.hpp"
#include "comm/hosts/group/direct_reduction.hpp"
#include "comm/hosts/group/grouped.hpp"

namespace tutti {
namespace {

/** Over connections that are not fast the root of a long reduction adds up nothing: its link has to
 * bring the sums alone then, and not also what the others contribute to a share of its own. It
 * takes the sums of some windows while later ones are on their way to those who add them up: so
 * there are many, and few leave before the sums of the first, which stand behind them. The more
 * owners there are, the more messages are a window, so there is to be so much for each of them: a
 * share has at least this many bytes for each owner but its own. */
constexpr std::int64_t kLeastToSpareRoot = std::int64_t{128} * 1024;
constexpr std::int64_t kFewestSparingWindows = 16;
constexpr std::int64_t kSparingUnderWay = 2;

/** Whether nobody on the hosts has to do with a reduce between its windows, so that a window is one
 * message. */
bool goes_in_long_windows(const HostGroup& group, std::int64_t bytes) {
  return bytes > group.size() * Wire::kPiece && group.passes_on();
}

/** Whether the root of a reduce of `bytes` bytes adds up nothing. */
bool spares_root(const HostGroup& group, std::int64_t bytes) {
  const std::int64_t others = group.size() - 1;
  return goes_in_long_windows(group, bytes) && group.is_centred() && !group.wire().is_fast() &&
         bytes >= others * (others - 1) * kLeastToSpareRoot;
}

}  // namespace

void reduce_to(const HostGroup& group, int root, void* data, std::int64_t count, DType dtype,
               const cpu::Combine& combine, const void* from) {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t bytes = count * size_of(dtype);
  if (from == nullptr) from = data;
  if (!group.goes_whole(bytes) && group.stand_in_groups()) {
    copy_bytes(begin, from, bytes);
    const Segments segments = grouped_segments(bytes, group.size());
    return reduce_grouped(group, begin, dtype, combine, root, {segments, {}, size_of(dtype)});
  }
  constexpr int kNobody = DirectReduction::kNobody;
  const bool is_shared = !group.goes_whole(bytes) && group.size() > 2;
  const bool is_spared = spares_root(group, bytes);
  Shards sums{begin, {}, window_for(group.size())};
  if (is_shared) {
    sums.offsets = even_offsets(bytes, group.size(), is_spared ? root : kNobody);
  } else {  // the root owns everything: one round, and between two members not a byte more
    sums.offsets.assign(static_cast<std::size_t>(group.size()) + 1, 0);
    std::fill(sums.offsets.begin() + root + 1, sums.offsets.end(), bytes);
  }
  if (goes_in_long_windows(group, bytes)) {  // with room for no more than a shard
    constexpr std::int64_t kLine = Shards::kCacheLine;
    const std::int64_t fewest = is_spared ? kFewestSparingWindows : 1;
    const std::int64_t part = (sums.longest() + fewest - 1) / fewest;
    sums.window =
        std::min(is_spared ? kSharedWindow : kLongWindow, (part + kLine - 1) / kLine * kLine);
  }
  WindowPlan windows{sums.windows(), sums.window};
  if (is_spared) windows.under_way = kSparingUnderWay;
  const Shards own{static_cast<std::byte*>(const_cast<void*>(from)), sums.offsets, sums.window};
  DirectReduction(group, dtype, combine)
      .reduce_shards([&](int owner, std::int64_t number) { return sums.part(owner, number); },
                     [&](int owner, std::int64_t number) { return own.part(owner, number); },
                     windows, is_shared ? root : kNobody);
}

void reduce_scatter_v(const HostGroup& group, void* data, std::span<const std::int64_t> offsets,
                      DType dtype, const cpu::Combine& combine) {
  Shards shards{static_cast<std::byte*>(data), {}, window_for(group.size())};
  for (const std::int64_t offset : offsets) shards.offsets.push_back(offset * size_of(dtype));
  const auto part = [&](int owner, std::int64_t number) { return shards.part(owner, number); };
  DirectReduction(group, dtype, combine)
      .reduce_shards(part, part, {shards.windows(), shards.window}, DirectReduction::kNobody);
}

}  // namespace tutti
