// How members cut a long sum, and what goes on around it on their hosts.
#include <cstdint>

#include "comm/hosts/group.hpp"
#include "comm/hosts/pipeline.hpp"

namespace tutti {

Segments HostGroup::segments_of(std::int64_t bytes) const {
  if (stand_in_groups()) return grouped_segments(bytes, size());
  return is_pair(bytes) ? pair_segments(bytes) : direct_segments(bytes);
}

std::int64_t HostGroup::share_of_lane(std::int64_t count, std::int64_t total, DType dtype) const {
  const std::int64_t width = size_of(dtype);
  const int owners = is_pair(total * width) ? 1 : size();
  return segments_of(total * width).shards(count * width, owners) / width;
}

std::int64_t HostGroup::first_segment(std::int64_t count, DType dtype) const {
  return segments_of(count * size_of(dtype)).begin(1) / size_of(dtype);
}

/** So many windows have been posted after the first by the time at which its results are there. */
std::int64_t HostGroup::posted_behind(std::int64_t bytes, std::int64_t window) const {
  if (stand_in_groups()) return posted_after(4, kGroupedUnderWay);
  return is_pair(bytes) ? posted_after(1, kPairUnderWay)
                        : posted_after(2, windows_under_way(window));
}

void HostGroup::accompany(std::int64_t count, DType dtype, const Around& around) const {
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

}  // namespace tutti
