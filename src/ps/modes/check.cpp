// Refuses modes that make no sense.
#include "ps/modes/check.hpp"

#include <cstdint>
#include <limits>

#include "base/refuse.hpp"

namespace tutti::ps {
namespace {

/** Requests count the batches that were merged into them in 16 bits. */
constexpr std::int64_t kMostBatches = std::numeric_limits<std::uint16_t>::max();

void require_within(const char* option, std::int64_t value, std::int64_t most) {
  if (value < 1 || value > most) refuse(option, " is ", value, ", not 1 to ", most);
}

struct Checker {
  void operator()(const Sync&) const {}
  void operator()(const Async& mode) const {
    require_within("Async: max_merge_var_num", mode.max_merge_var_num, kMostBatches);
    require_within("Async: send_queue_size", mode.send_queue_size, kMostBatches);
    if (mode.staleness)
      require_within("Async: staleness", *mode.staleness, std::numeric_limits<std::int64_t>::max());
  }
  void operator()(const HalfAsync& mode) const {
    require_within("HalfAsync: merge_batches", mode.merge_batches, kMostBatches);
  }
  void operator()(const Geo& mode) const {
    require_within("Geo: push_steps", mode.push_steps, std::numeric_limits<std::int64_t>::max());
  }
};

}  // namespace

void check(const Mode& mode) { std::visit(Checker{}, mode); }

}  // namespace tutti::ps
