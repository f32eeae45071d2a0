// Looks at two clocks at once, and converts between them.
#include "comm/record/clock.hpp"

#include <limits>

namespace tutti::record {

Anchor TickClock::anchor() const {
  constexpr int kLooks = 3;
  Anchor best;
  std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
  for (int look = 0; look < kLooks; ++look) {
    const std::uint64_t before = now();
    const std::int64_t nanoseconds = monotonic();
    const std::uint64_t width = now() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    best = {before + width / 2, nanoseconds};
  }
  return best;
}

TickScale::TickScale(const Anchor& earlier, const Anchor& later) : start_(earlier) {
  const auto ticks = static_cast<double>(static_cast<std::int64_t>(later.ticks - earlier.ticks));
  const auto nanoseconds = static_cast<double>(later.nanoseconds - earlier.nanoseconds);
  if (ticks > 0 && nanoseconds > 0) nanoseconds_a_tick_ = nanoseconds / ticks;
}

}  // namespace tutti::record
