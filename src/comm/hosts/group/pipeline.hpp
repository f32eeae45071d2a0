// Exchanges between hosts that follow each other, window by window, so that the wire has work.
#pragma once

#include <cstdint>
#include <deque>

#include "base/recycled.hpp"
#include "comm/hosts/group/group_batch.hpp"

namespace tutti {

/** An exchange, window by window: post(batch, window) posts messages, then(window) runs when all of
 * these have ended. */
template <class Post, class Then>
struct PipelineStep {
  Post post;
  Then then;
};
template <class Post, class Then>
PipelineStep(Post, Then) -> PipelineStep<Post, Then>;

/** Of an exchange whose results are only sent on. */
inline constexpr auto kNothing = [](std::int64_t) {};

/**
 * Runs exchanges of `windows` windows each, of which each sends on what the one before it has
 * brought. `depth` batches are under way at any time: so long after a window was posted the next
 * exchange posts it, and the wire has work while then() runs.
 */
template <class... Steps>
void run_pipeline(const HostGroup& group, Wire::Traffic traffic, std::int64_t windows,
                  std::int64_t depth, const Steps&... steps) {
  constexpr std::int64_t kSteps = sizeof...(steps);
  std::deque<GroupBatch, RecyclingAllocator<GroupBatch>> under_way;
  std::int64_t window = 0;
  const auto post = [&](const auto& one) {
    if (0 <= window && window < windows) one.post(under_way.back(), window);
    window -= depth;
  };
  const auto then = [&](const auto& one) {
    if (0 <= window && window < windows) one.then(window);
    window -= depth;
  };
  for (std::int64_t turn = 0; turn < windows + kSteps * depth - 1; ++turn) {
    under_way.emplace_back(group, traffic);
    window = turn;
    (post(steps), ...);
    if (turn + 1 < depth) continue;
    under_way.front().wait();
    under_way.pop_front();
    window = turn + 1 - depth;
    (then(steps), ...);
  }
}

template <class... Steps>
void run_pipeline(const HostGroup& group, std::int64_t windows, std::int64_t depth,
                  const Steps&... steps) {
  run_pipeline(group, Wire::Traffic::collective, windows, depth, steps...);
}

/** By when the last of `steps` has ended with a window, the first has posted so many after it. */
constexpr std::int64_t posted_after(std::int64_t steps, std::int64_t depth) {
  return steps * depth - 1;
}

}  // namespace tutti
