// Refuses modes that make no sense.
#include "ps/modes/check.hpp"

#include <cstdint>

#include "base/refuse.hpp"

namespace tutti::ps {
namespace {

void require_positive(const char* option, std::int64_t value) {
  if (value < 1) refuse(option, " is ", value, ", not 1 or more");
}

struct Checker {
  void operator()(const Sync&) const {}
  void operator()(const Async& mode) const {
    require_positive("Async: max_merge_var_num", mode.max_merge_var_num);
    require_positive("Async: send_queue_size", mode.send_queue_size);
    if (mode.staleness) require_positive("Async: staleness", *mode.staleness);
  }
  void operator()(const HalfAsync& mode) const {
    require_positive("HalfAsync: merge_batches", mode.merge_batches);
  }
  void operator()(const Geo& mode) const { require_positive("Geo: push_steps", mode.push_steps); }
};

}  // namespace

void check(const Mode& mode) { std::visit(Checker{}, mode); }

}  // namespace tutti::ps
