// Turns calls and waits into slices of a timeline.
#include "comm/record/journal.hpp"

#include <cmath>
#include <exception>

#include "base/log.hpp"

namespace tutti::record {

void Journal::tell(Trace& trace, const CallEntry& entry, const UnderWay& own, std::uint64_t now) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const auto operation = static_cast<Operation>(entry.operation.load(kRelaxed));
  const auto dtype = static_cast<DType>(entry.dtype.load(kRelaxed));
  const std::int64_t count = entry.count.load(kRelaxed);
  const std::int32_t root = entry.root.load(kRelaxed);
  Slice slice;
  slice.name = name_of(operation).data();
  slice.begin = entry.begun.load(kRelaxed);
  slice.end = now;
  std::size_t said = 0;
  const auto say = [&](const Argument& argument) { slice.arguments[said++] = argument; };
  say({"number", static_cast<std::int64_t>(entry.sequence.load(kRelaxed))});
  if (count > 0) {
    say({"dtype", name_of(dtype).data()});
    say({"count", count});
    say({"bytes", count * size_of(dtype)});
  }
  if (root >= 0) say({lane_of(operation) == Lane::collective ? "root" : "peer", root});
  if (own.way != nullptr) say({"way", own.way});
  say({"waiting_us", Ticks{static_cast<std::int64_t>(own.waited)}});
  say({"moving_us", Ticks{static_cast<std::int64_t>(now - slice.begin - own.waited)}});
  trace.add(slice);
}

void Journal::tell_wait(Trace& trace, int last, std::uint64_t since, std::uint64_t now) {
  Slice slice;
  slice.name = "wait";
  slice.begin = since;
  slice.end = now;
  slice.arguments[0] = {"rank", last};
  trace.add(slice);
}

std::chrono::nanoseconds Journal::length_of(const Absence& absence) const {
  constexpr std::uint64_t kTooFew = 1000;  // to look at two clocks: a microsecond at most
  const std::uint64_t ticks = absence.until - absence.since;
  if (ticks < kTooFew) return {};
  const TickScale scale(start_, recorder_.clock().anchor());
  return std::chrono::nanoseconds(scale.length(static_cast<std::int64_t>(ticks)));
}

std::uint64_t Journal::ticks_of(std::chrono::nanoseconds time) const {
  if (time.count() == 0) return 0;
  const TickScale scale(start_, recorder_.clock().anchor());
  return static_cast<std::uint64_t>(scale.ticks(time.count()));
}

std::vector<double> Journal::seconds_waited() const {
  std::vector<double> seconds;
  if (!lateness_) return seconds;
  const TickScale scale(start_, recorder_.clock().anchor());
  for (const std::uint64_t ticks : lateness_->waited()) {
    const std::int64_t nanoseconds = scale.length(static_cast<std::int64_t>(ticks));
    seconds.push_back(static_cast<double>(nanoseconds) * 1e-9);
  }
  return seconds;
}

void Journal::judge(const Lateness::Finding& finding) noexcept {
  if (std::exchange(judged_, true)) return;
  try {
    if (!log_enabled(LogLevel::warn)) return;
    const auto late = neighbours_.claim_late(finding.rank);
    if (!late) return;
    log(LogLevel::warn,
        *late + " keeps others waiting: " + std::to_string(std::lround(finding.share * 100)) +
            " % of the time of " + std::to_string(Lateness::kCalls) + " collectives");
  } catch (const std::exception& error) {  // no memory, or no descriptor left
    log(LogLevel::warn, error.what());
  }
}

}  // namespace tutti::record
