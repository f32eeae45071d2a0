// Keeps the moments by which a ring's times can be told in nanoseconds.
#include "comm/record/recorder.hpp"

namespace tutti::record {

Recorder::Recorder(Ring& ring) : ring_(ring) {
  ring_.counts_ticks.store(clock_.counts_ticks(), std::memory_order_relaxed);
  note_moment(1);
}

void Recorder::note_moment(std::uint64_t round) {
  const Anchor anchor = clock_.anchor();
  Ring::Moment& moment = ring_.moments[round % ring_.moments.size()];
  moment.ticks.store(anchor.ticks, std::memory_order_relaxed);
  moment.nanoseconds.store(anchor.nanoseconds, std::memory_order_release);
}

}  // namespace tutti::record
