// When workers push and what they wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

namespace tutti::ps {

/**
 * Every step() ends a round: servers add the pushes of all workers in the order of their ranks,
 * divide by their number, apply that once, and then all go on. Rows come out bit for bit as from
 * one worker that pushes the batches one after the other, divided by their number (by a
 * multiplication with 1 / number). A dense gradient that is pushed several times a step is added up
 * on its worker first. A worker that has stopped, since it has less data, takes part in no further
 * round: the number is that of those who do.
 */
struct Sync {
  /** Whether the others go on (and divide by the number of those who live) when a worker is lost,
   * without what it has pushed in a round that not all have ended; otherwise step() throws PeerLost
   * on all of them. */
  bool continue_after_loss = false;
};

/**
 * step() hands the batch over and returns. Servers apply pushes as they come, without dividing.
 * While servers are behind, batches wait, and those that wait are merged: summed for Sgd, averaged
 * for the other rules. What waits is sent by later calls but for pushes.
 */
struct Async {
  std::int64_t max_merge_var_num = 20;  ///< batches merged into one push at most
  std::int64_t send_queue_size = 20;    ///< batches that wait at most: then step() waits
  /** step() waits while this worker has ended so many more steps than the slowest that lives. */
  std::optional<std::int64_t> staleness{};
  bool divide_by_workers = false;
};

/** Every `merge_batches` steps: the batches are merged, pushed, and step() waits for that alone. */
struct HalfAsync {
  std::int64_t merge_batches = 1;
};

/**
 * Workers train copies of their own with the parameters' rules. Every `push_steps` steps, with x
 * the copy, o what it was at the last exchange, and T workers: d = (x - o) / T; o += d; the server
 * adds d; what it has then is s: x += s - o; o = s. stop() pushes what is left, x - o, whole, and
 * so do flush(), barrier() and save(), in an exchange. Progress that a server has no memory for is
 * pushed again in the next one. Tables have no rules of entry and eviction.
 */
struct Geo {
  std::int64_t push_steps = 100;
};

using Mode = std::variant<Sync, Async, HalfAsync, Geo>;

}  // namespace tutti::ps
