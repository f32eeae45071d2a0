// What a worker has asked a server for, and whom others wait for.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "ps/link/links.hpp"
#include "ps/modes/members.hpp"

namespace tutti::ps {

/** A worker's requests, of which only the first is being looked at: what it waits for, those after
 * it wait for, too. */
struct RequestLine {
  using Clock = std::chrono::steady_clock;

  std::deque<Request> requests;
  bool begun = false;  ///< the first has been looked at
  std::optional<Deadline> deadline;
  Clock::time_point waits_since{};
  std::optional<Clock::time_point> asks_again_since{};  ///< told not_yet, and waits since then
  Clock::time_point heard{};                            ///< when the worker has last sent anything,
  Clock::time_point saved{};                            ///< or looked after its checkpoint

  bool waits_for(RequestKind kind) const { return begun && requests.front().header.kind == kind; }
};

/** Whether somebody else's request waits for this worker. */
inline bool holds_up(const Members& members, int worker, const Request& waiting) {
  switch (waiting.header.kind) {
    case RequestKind::barrier:
      return members.barriers(worker) < members.barriers(waiting.worker);
    case RequestKind::end_round:
      return members.rounds(worker) <=
             waiting.header.round - std::max<std::int64_t>(1, waiting.header.count);
    default:
      return false;
  }
}

inline std::string described(const Request& waiting) {
  if (waiting.header.kind == RequestKind::barrier) return "a barrier";
  return "the end of step " + std::to_string(waiting.header.round);
}

}  // namespace tutti::ps
