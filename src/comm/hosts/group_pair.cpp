// Long sums of two members, who give each other all they have.
#include <cstddef>
#include <cstdint>

#include "comm/hosts/group.hpp"
#include "comm/hosts/pipeline.hpp"

namespace tutti {
namespace {

/** What arrives is added in windows, while it is in the caches. */
constexpr std::int64_t kWindow = std::int64_t{512} * 1024;

}  // namespace

Segments HostGroup::pair_segments(std::int64_t bytes) const {
  return {bytes, lane_.of, kWindow, 1, kCacheLine};
}

/** As many bytes travel as if each had a shard to add up, and nobody waits for results. In place:
 * a window has left by the time at which it is added to. */
void HostGroup::reduce_pair(std::byte* data, const Segments& segments, DType dtype,
                            const cpu::Combine& combine, const SegmentCalls& calls) {
  const std::int64_t room = segments.longest_part();
  const Scratch memory(wire_.scratch(), kPairUnderWay * room);
  const int other = peer(1);
  const auto received = [&](std::int64_t window) {
    return memory.data() + window % kPairUnderWay * room;
  };
  const auto own = [&](std::int64_t window) {
    const Around& around = calls.around;
    const void* const there = segments.segment_of(window) == 0 ? around.first : around.others;
    return segments.part(static_cast<const std::byte*>(there != nullptr ? there : data),
                         lane_.number, window);
  };
  const auto exchange = [&](Batch& batch, std::int64_t window) {
    calls.before(window);
    const auto part = own(window);
    recv(batch, {received(window), part.size()}, other);
    send(batch, part, other);
  };
  const auto add = [&](std::int64_t window) {
    const auto sums = segments.part(data, lane_.number, window);
    combine_here(sums.data(), own(window).data(), received(window), 0, std::ssize(sums), dtype,
                 combine);
    calls.after(window);
  };
  run_pipeline(wire_, segments.windows(), kPairUnderWay, PipelineStep{exchange, add});
}

}  // namespace tutti
