// How members cut a long sum, and add it up.
#include "comm/hosts/group/all_reduce.hpp"

#include <optional>
#include <span>

#include "base/memory.hpp"
#include "comm/hosts/group/direct_reduction.hpp"
#include "comm/hosts/group/grouped.hpp"

namespace tutti {
namespace {

/** Windows of a shard in a segment: what a host adds up before the first bytes travel, and hands
 * out after the last have come, is little, and the ranks of a host do not meet too often. */
constexpr std::int64_t kSegmentWindows = 4;
/** What arrives of two members who give each other all is added in windows, while it is in the
 * caches. */
constexpr std::int64_t kPairWindow = std::int64_t{512} * 1024;
/** So many of them are under way: one is added while another travels. */
constexpr std::int64_t kPairUnderWay = 2;

}  // namespace

// --- Segments -----------------------------------------------------------------------------------

Segments AllReduce::direct_segments(std::int64_t bytes) const {
  const int owners = group_.size() * lane_.of;
  if (has_long_windows(bytes)) {
    return {bytes, owners, alone_ ? kLongWindow : kSharedWindow, 1, Shards::kCacheLine};
  }
  return {bytes, owners, window_for(group_.size()), kSegmentWindows, Shards::kCacheLine};
}

Segments AllReduce::pair_segments(std::int64_t bytes) const {
  return {bytes, lane_.of, kPairWindow, 1, Shards::kCacheLine};
}

Segments AllReduce::segments_of(std::int64_t bytes) const {
  if (group_.stand_in_groups()) return grouped_segments(bytes, group_.size());
  return is_pair(bytes) ? pair_segments(bytes) : direct_segments(bytes);
}

std::int64_t AllReduce::share_of_lane(std::int64_t count, std::int64_t total, DType dtype) const {
  const std::int64_t width = size_of(dtype);
  const int owners = is_pair(total * width) ? 1 : group_.size();
  return segments_of(total * width).shards(count * width, owners) / width;
}

std::int64_t AllReduce::first_segment(std::int64_t count, DType dtype) const {
  return segments_of(count * size_of(dtype)).begin(1) / size_of(dtype);
}

/** So many windows have been posted after the first by the time at which its results are there. */
std::int64_t AllReduce::posted_behind(std::int64_t bytes, std::int64_t window) const {
  if (group_.stand_in_groups()) return kPostedBehindGrouped;
  return is_pair(bytes) ? posted_after(1, kPairUnderWay)
                        : posted_after(2, windows_under_way(window));
}

void AllReduce::accompany(std::int64_t count, DType dtype, const Around& around) const {
  const std::int64_t width = size_of(dtype);
  const Segments segments = segments_of(count * width);
  const std::int64_t ahead =
      1 + segments.segment_of(posted_behind(count * width, segments.window()) - 1);
  const SegmentCalls calls{segments, around, width};
  for (std::int64_t segment = 0; segment < segments.count() + ahead; ++segment) {
    if (segment < segments.count()) calls.call(around.before, segment);
    if (segment >= ahead) calls.call(around.after, segment - ahead);
  }
}

// --- Sums ---------------------------------------------------------------------------------------

void AllReduce::run(void* data, std::int64_t count, DType dtype, const cpu::Combine& combine,
                    const Around& around) const {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t width = size_of(dtype);
  const std::int64_t bytes = count * width;
  const DirectReduction reduction(group_, dtype, combine);
  const bool ahead = goes_ahead(bytes);
  if (around.agree && !ahead) around.agree(nullptr);
  if (group_.goes_whole(bytes)) {
    around.before(0, count);
    if (around.first != nullptr) copy_bytes(begin, around.first, bytes);
    reduction.reduce_whole(begin, bytes);
    return around.after(0, count);
  }
  const Segments segments = segments_of(bytes);
  const SegmentCalls calls{segments, around, width};
  if (group_.stand_in_groups()) {
    reduce_grouped(group_, begin, dtype, combine, std::nullopt, calls);
  } else if (is_pair(bytes)) {
    reduce_pair(reduction, begin, calls);
  } else {
    reduce_segments(reduction, begin, calls, ahead ? around.agree : Agree());
  }
}

void AllReduce::run_in_order(void* data, std::int64_t count, DType dtype,
                             const cpu::Combine& combine) const {
  auto* const begin = static_cast<std::byte*>(data);
  const std::int64_t width = size_of(dtype);
  const DirectReduction reduction(group_, dtype, combine);
  if (group_.goes_whole(count * width)) return reduction.reduce_whole(begin, count * width);
  const Segments segments = direct_segments(count * width);
  reduce_segments(reduction, begin, {segments, {}, width}, {});
}

void AllReduce::reduce_segments(const DirectReduction& reduction, std::byte* data,
                                const SegmentCalls& calls, const Agree& agree) const {
  const Segments& segments = calls.segments;
  const auto before = [&](std::int64_t window) { calls.before(window); };
  const auto after = [&](std::int64_t window) { calls.after(window); };
  const int before_ours = lane_.number * group_.size();  // the owners of other lanes
  const auto part = [&](int owner, std::int64_t window) {
    return segments.part(data, before_ours + owner, window);
  };
  const void* const first = calls.around.first != nullptr ? calls.around.first : data;
  const void* const others = calls.around.others != nullptr ? calls.around.others : data;
  const auto own = [&](int owner, std::int64_t window) {
    const void* const base = segments.segment_of(window) == 0 ? first : others;
    return segments.part(static_cast<const std::byte*>(base), before_ours + owner, window);
  };
  static_assert(windows_under_way(kLongWindow) * HostGroup::kMostDirect * kLongWindow <=
                kMostScratch);
  const bool is_long = segments.window() > Wire::kPiece;  // of agreed, so exact lengths
  const std::int64_t window = is_long ? segments.longest_part() : segments.window();
  reduction.reduce_shards(part, own, {segments.windows(), window}, DirectReduction::kEverybody,
                          agree, before, after);
}

/** As many bytes travel as if each had a shard to add up, and nobody waits for results. In place: a
 * window has left by the time at which it is added to. */
void AllReduce::reduce_pair(const DirectReduction& reduction, std::byte* data,
                            const SegmentCalls& calls) const {
  const Segments& segments = calls.segments;
  const std::int64_t room = segments.longest_part();
  const Scratch memory(group_.wire().scratch(), kPairUnderWay * room);
  const int other = group_.peer(1);
  const auto received = [&](std::int64_t window) {
    return memory.data() + window % kPairUnderWay * room;
  };
  const auto own = [&](std::int64_t window) {
    const Around& around = calls.around;
    const void* const there = segments.segment_of(window) == 0 ? around.first : around.others;
    return segments.part(static_cast<const std::byte*>(there != nullptr ? there : data),
                         lane_.number, window);
  };
  const auto exchange = [&](GroupBatch& batch, std::int64_t window) {
    calls.before(window);
    const auto part = own(window);
    batch.recv({received(window), part.size()}, other);
    batch.send(part, other);
  };
  const auto add = [&](std::int64_t window) {
    const auto sums = segments.part(data, lane_.number, window);
    reduction.combine(sums.data(), own(window).data(), received(window), 0, std::ssize(sums));
    calls.after(window);
  };
  run_pipeline(group_, segments.windows(), kPairUnderWay, PipelineStep{exchange, add});
}

}  // namespace tutti
